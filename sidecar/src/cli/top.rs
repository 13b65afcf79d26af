//! `sluicegate top`: who is being denied, from a running sidecar.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use clap::ValueEnum;
use sluicegate_protocol::{TOP_PATH, Top, TopLimit};

use super::Failure;
use super::stdout::print;

/// Between two looks. Prometheus would look less often, a human not more often.
const EVERY: Duration = Duration::from_secs(2);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Puts the cursor in the terminal's upper left corner and takes away all that is below it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `top`.
#[derive(clap::Args)]
pub struct Tell {
    /// The sidecar's admin address.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9181")]
    admin: String,
    /// Its admin token, where it has one.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SLUICEGATE_ADMIN_TOKEN",
        hide_env_values = true
    )]
    admin_token: Option<String>,
    /// Only this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Print once and end, also on a terminal.
    #[arg(long)]
    once: bool,
    /// `json` prints once what the sidecar answers.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl Tell {
    pub async fn run(self) -> Result<(), Failure> {
        let live = !self.once && self.output == Output::Text && std::io::stdout().is_terminal();
        if !live {
            let top = self.limited(self.ask().await?)?;
            return self.print(&top);
        }
        // Waited for from the start on, so that none is lost while an answer is waited for.
        tokio::select! {
            done = self.refresh() => done,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    }

    /// Prints page over page, for ever.
    async fn refresh(&self) -> Result<(), Failure> {
        loop {
            // A sidecar that is away may come back; until then the last page must not look like the present one.
            let page = match self.ask().await {
                Ok(top) => text(&self.limited(top)?),
                Err(failure) => format!("sluicegate: {failure}\n"),
            };
            let every = EVERY.as_secs();
            print(&format!("{CLEAR}{page}\nEvery {every} s; Ctrl-C ends.\n"))?;
            tokio::time::sleep(EVERY).await;
        }
    }

    fn print(&self, top: &Top) -> Result<(), Failure> {
        match self.output {
            Output::Text => print(&text(top)),
            Output::Json => {
                let json = serde_json::to_string_pretty(top).map_err(Failure::system)?;
                print(&(json + "\n"))
            }
        }
    }

    async fn ask(&self) -> Result<Top, Failure> {
        let url = format!("{}{TOP_PATH}", self.admin.trim_end_matches('/'));
        let away = |error: &dyn std::fmt::Display| {
            Failure::system(format!(
                "no answer from {url}: {error}. Is the sidecar running? `--admin` has to be what `sluicegate serve` \
                 has as `--admin-listen`, which is 127.0.0.1:9181 unless it is said"
            ))
        };
        // No proxy: the address is usually of this machine.
        let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy();
        let client = client.build().map_err(Failure::system)?;
        let mut request = client.get(&url);
        if let Some(token) = &self.admin_token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await;
        let answer = answer
            .and_then(reqwest::Response::error_for_status)
            .map_err(|error| away(&whole(&error)))?;
        let body = answer.bytes().await.map_err(|error| away(&whole(&error)))?;
        serde_json::from_slice(&body).map_err(|error| away(&error))
    }

    fn limited(&self, mut top: Top) -> Result<Top, Failure> {
        let Some(wanted) = &self.limit else {
            return Ok(top);
        };
        let names: Vec<_> = top
            .limits
            .iter()
            .map(|l| format!("`{}`", l.limit))
            .collect();
        top.limits.retain(|limit| limit.limit == *wanted);
        if top.limits.is_empty() {
            return Err(Failure::usage(format!(
                "`--limit`: the policy in force has no limit `{wanted}`; it has {}",
                names.join(", ")
            )));
        }
        Ok(top)
    }
}

/// An error with what it comes from: reqwest's own text does not say why there was no connection.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// A page for people.
fn text(top: &Top) -> String {
    let mut page = String::new();
    for limit in &top.limits {
        // Writing to a string cannot fail.
        let _ = tell(&mut page, limit);
    }
    page.push_str(
        "A subject is a hash of a key; `sluicegate explain` prints the one of a request.\n",
    );
    page
}

fn tell(page: &mut String, limit: &TopLimit) -> std::fmt::Result {
    writeln!(
        page,
        "limit {}: {} denied in the last {} s",
        limit.limit, limit.denied_total, limit.since_seconds
    )?;
    if !limit.most_denied.is_empty() {
        writeln!(
            page,
            "  {:<14}{:>10}{:>8}{:>8}",
            "most denied", "denied", "error", "share"
        )?;
    }
    for one in &limit.most_denied {
        writeln!(
            page,
            "  {:<14}{:>10}{:>8}{:>6} %",
            one.subject,
            one.count,
            if one.error == 0 {
                "0".to_owned()
            } else {
                format!("-{}", one.error)
            },
            one.count.saturating_mul(100) / limit.denied_total.max(1)
        )?;
    }
    if !limit.nearest.is_empty() {
        writeln!(page, "  {:<14}{:>10}", "nearest", "used")?;
    }
    for near in &limit.nearest {
        writeln!(
            page,
            "  {:<14}{:>8.0} %",
            near.subject,
            (near.used_ratio * 100.0).floor()
        )?;
    }
    writeln!(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_protocol::{TopDenied, TopNearest};

    #[test]
    fn a_page_names_subjects_with_their_counts_and_how_exact_they_are() {
        let limit = TopLimit {
            limit: "per-key".to_owned(),
            denied_total: 120,
            since_seconds: 61,
            most_denied: vec![
                TopDenied {
                    subject: "0123456789ab".to_owned(),
                    count: 90,
                    error: 3,
                },
                TopDenied {
                    subject: "ba9876543210".to_owned(),
                    count: 30,
                    error: 0,
                },
            ],
            nearest: vec![TopNearest {
                subject: "0123456789ab".to_owned(),
                used_ratio: 0.96,
            }],
        };
        let told = text(&Top {
            limits: vec![limit],
        });
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(
            lines[..6],
            [
                "limit per-key: 120 denied in the last 61 s",
                "  most denied       denied   error   share",
                "  0123456789ab          90      -3    75 %",
                "  ba9876543210          30       0    25 %",
                "  nearest             used",
                "  0123456789ab        96 %",
            ]
        );
    }
}
