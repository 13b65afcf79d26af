//! `sluicegate top`: shows which subjects a running sidecar denies.

use std::io::IsTerminal;
use std::time::Duration;

use sluicegate_protocol::{TOP_PATH, Top, TopLimit};

use super::Failure;
use super::admin::Admin;
use super::client::Client;
use super::output::Output;
use super::stdout::{line, print};

/// Refresh interval: shorter than a Prometheus scrape, and as fast as a person reads.
const EVERY: Duration = Duration::from_secs(2);
/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `top`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate top --limit per-key --once\n\nMore:\n  docs/top.md")]
pub struct Watch {
    #[command(flatten)]
    admin: Admin,
    /// Show only this limit; of one with tiers or consumers, all of theirs.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Print once and exit, even on a terminal.
    #[arg(long)]
    once: bool,
    /// Output format; `json` prints the sidecar's answer once.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Watch {
    pub async fn run(self) -> Result<(), Failure> {
        let live = !self.once && self.output == Output::Text && std::io::stdout().is_terminal();
        let client = self.admin.client()?;
        if !live {
            let top = self.limited(client.get(TOP_PATH).await?)?;
            return self.output.print(&top, text);
        }
        // Listens for Ctrl-C from the start, so that none is lost while a request is in progress.
        tokio::select! {
            done = self.refresh(&client) => done,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    }

    /// Prints the page again and again; never returns without an error.
    async fn refresh(&self, client: &Client) -> Result<(), Failure> {
        loop {
            // A sidecar may come back; until then, show the error instead of an outdated page.
            let page = match client.get(TOP_PATH).await {
                Ok(top) => text(&self.limited(top)?),
                Err(failure) => format!("sluicegate: {failure}\n"),
            };
            let every = EVERY.as_secs();
            print(&format!(
                "{CLEAR}{page}\nRefreshed every {every} s; press Ctrl-C to exit.\n"
            ))?;
            tokio::time::sleep(EVERY).await;
        }
    }

    fn limited(&self, mut top: Top) -> Result<Top, Failure> {
        let Some(wanted) = &self.limit else {
            return Ok(top);
        };
        let names = top.limits.iter().map(|one| format!("`{}`", one.limit));
        let names: Vec<_> = names.collect();
        retain(&mut top, wanted);
        if top.limits.is_empty() {
            return Err(Failure::usage(format!(
                "`--limit`: the policy in force has no limit `{wanted}`; it has {}",
                names.join(", ")
            )));
        }
        Ok(top)
    }
}

/// Leaves this limit, or else those of its tiers or consumers: any name may contain dots.
fn retain(top: &mut Top, wanted: &str) {
    let is_limit = top.limits.iter().any(|limit| limit.limit == *wanted);
    let is_of = |rest: &str| rest.is_empty() || !is_limit && rest.starts_with('.');
    let is_wanted = |limit: &TopLimit| limit.limit.strip_prefix(wanted).is_some_and(is_of);
    top.limits.retain(is_wanted);
}

/// The page as text.
fn text(top: &Top) -> String {
    let mut page = String::new();
    for limit in &top.limits {
        tell(&mut page, limit);
    }
    page.push_str(
        "A subject is a consumer or a hash of a key; `sluicegate explain` prints the subjects of a request.\n",
    );
    page
}

fn tell(page: &mut String, limit: &TopLimit) {
    let (name, denied, seconds) = (&limit.limit, limit.denied_total, limit.since_seconds);
    line!(
        page,
        "limit {name}: {denied} denied in the last {seconds} s"
    );
    if let Some(reserves) = &limit.reserves {
        let used = (reserves.used_ratio * 100.0).floor();
        let starve = reserves
            .starve
            .then_some(": reserves may starve this limit");
        let starve = starve.unwrap_or_default();
        line!(page, "  {used:.0} % of what is reserved is used{starve}");
    }
    if !limit.most_denied.is_empty() {
        line!(page, "  most denied               denied   error   share");
    }
    for one in &limit.most_denied {
        let error = match one.error {
            0 => "0".to_owned(),
            error => format!("-{error}"),
        };
        let share = one.count.saturating_mul(100) / denied.max(1);
        let (subject, count) = (whose(&one.subject, one.consumer.as_ref()), one.count);
        line!(page, "  {subject:<22}{count:>10}{error:>8}{share:>6} %");
    }
    if !limit.nearest.is_empty() {
        line!(page, "  nearest                     used");
    }
    for near in &limit.nearest {
        let used = (near.used_ratio * 100.0).floor();
        let subject = whose(&near.subject, near.consumer.as_ref());
        line!(page, "  {subject:<22}{used:>8.0} %");
    }
    page.push('\n');
}

fn whose(subject: &str, consumer: Option<&String>) -> String {
    consumer.map_or(subject.to_owned(), |name| format!("consumer {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_protocol::{TopDenied, TopNearest, TopReserves};

    #[test]
    fn a_page_names_subjects_with_their_counts_and_how_exact_they_are() {
        let denied = |subject: &str, count, error| TopDenied {
            subject: subject.to_owned(),
            consumer: None,
            count,
            error,
        };
        let limit = TopLimit {
            limit: "per-key".to_owned(),
            denied_total: 120,
            since_seconds: 61,
            most_denied: vec![
                denied("0123456789abcdef0123", 90, 3),
                denied("ba987654321001234567", 30, 0),
            ],
            nearest: vec![TopNearest {
                subject: "0123456789abcdef0123".to_owned(),
                consumer: Some("acme".to_owned()),
                used_ratio: 0.96,
            }],
            reserves: Some(TopReserves {
                used_ratio: 0.128,
                starve: true,
            }),
        };
        let limits = vec![limit];
        let table = text(&Top { limits });
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines[..7],
            [
                "limit per-key: 120 denied in the last 61 s",
                "  12 % of what is reserved is used: reserves may starve this limit",
                "  most denied               denied   error   share",
                "  0123456789abcdef0123          90      -3    75 %",
                "  ba987654321001234567          30       0    25 %",
                "  nearest                     used",
                "  consumer acme               96 %",
            ]
        );
    }
    #[test]
    fn a_name_stands_for_its_tiers_if_no_limit_has_it() {
        let limits = ["a", "a.b", "p.gold", "p.default", "pp.x"].map(|name| TopLimit {
            limit: name.to_owned(),
            denied_total: 0,
            since_seconds: 1,
            most_denied: vec![],
            nearest: vec![],
            reserves: None,
        });
        for (wanted, found) in [("a", 1), ("a.b", 1), ("p", 2), ("x", 0)] {
            let limits = limits.to_vec();
            let mut top = Top { limits };
            retain(&mut top, wanted);
            assert_eq!(top.limits.len(), found, "{wanted}");
        }
    }
}
