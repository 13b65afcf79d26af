//! The request that `sluicegate check --url` sends.

use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::header::HOST;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use reqwest::Url;
use serde_json::Value;
use sluicegate::server::METRICS_PATH;

use super::report::{Report, Step};
use crate::cli::Failure;
use crate::cli::client::{self, Client};
use crate::cli::endpoint::Endpoint;
use crate::cli::explain::{CHECKS, CLAIMS, Explain, NO_CHECKS};

/// How long to wait for the answer, and then until the sidecar has counted it: filters report later what they admit themselves.
const WITHIN: Duration = Duration::from_secs(5);
const COUNTED_WITHIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);
/// The counter of decisions.
const DECISIONS: &str = "sluicegate_decisions_total{";
/// Its label of denials, of which filters report earlier ones too.
const OF_DENIALS: &str = "verdict=\"denied\"";
/// In denials, so that a client's Envoy does not retry them.
const DENIED: &str = "x-envoy-ratelimited";

/// The request.
#[derive(clap::Args)]
pub struct Asked {
    /// Also send one GET through Envoy, once all else is well: `http://127.0.0.1:10000/v1/x`. It counts like any other, and the
    /// upstream gets it. With `--wait`, it is sent again while it fails.
    #[arg(long, value_name = "URL", value_parser = url)]
    url: Option<String>,
    /// A header of that request: `x-api-key: k`. Can be given several times.
    #[arg(short = 'H', long = "header", value_name = "HEADER", requires = "url", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Asked {
    /// Sends it, if there is one and nothing is wrong so far. `again`: it has failed before, and may have used up what it is denied.
    pub async fn ask(&self, client: &Client, policy: &Path, again: bool, report: &mut Report) {
        let Some(url) = &self.url else { return };
        if report.failure().is_some() {
            return report.skip(Step::Request, "it is sent when all else is well");
        }
        match self.send(url, client, policy, again).await {
            Ok(answered) => _ = report.well(Step::Request, answered),
            Err(why) => report.fail(Step::Request, &why),
        }
    }

    /// What it is answered, if this sidecar counts it.
    async fn send(
        &self,
        url: &str,
        client: &Client,
        policy: &Path,
        again: bool,
    ) -> Result<String, Failure> {
        let before = decisions(client).await?;
        let http = client::http(&Endpoint::Http(url.to_owned()), WITHIN)?;
        let headers = self.headers.iter().cloned().collect();
        let answer = http.get(url).headers(headers).send().await;
        let answer = answer.map_err(|error| {
            let why = client::cause(&error);
            Failure::unavailable(format_args!("no answer: {why}. Is Envoy running there?"))
        })?;
        let (status, denied) = (answer.status(), answer.headers().contains_key(DENIED));
        let answered = match detail(&answer.text().await.unwrap_or_default()) {
            Some(detail) => format!("answered {status} ({detail})"),
            None => format!("answered {status}"),
        };
        if denied && again {
            return Err(Failure::system(format_args!(
                "{answered}, after it had failed before and may have taken what was left"
            )));
        }
        if denied {
            return Ok(format!(
                "{answered}: a limit denies it, so it took nothing. If Envoy has another limiter, the limit may be that one's"
            ));
        }
        let until = Instant::now() + COUNTED_WITHIN;
        while decisions(client).await? <= before {
            if Instant::now() >= until {
                let why = self.unmatched(url, policy).unwrap_or_else(|| {
                    "its route's rules do not match it, the filter refuses it for its key, this listener has no filter, or its filter \
                     asks another sidecar"
                        .to_owned()
                });
                return Err(Failure::system(format_args!(
                    "{answered}, and this sidecar has counted nothing: {why}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return Err(Failure::system(format_args!(
                "{answered}, although the sidecar has counted a request: is the upstream there?"
            )));
        }
        Ok(format!("{answered}, and the sidecar has counted a request"))
    }

    /// Why the policy's rules count nothing for it, if they do not.
    fn unmatched(&self, url: &str, policy: &Path) -> Option<String> {
        let url: Url = url.parse().ok()?;
        let text_of = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let given = self.headers.iter().find(|(name, _)| name == HOST);
        let host = given.map_or(url.authority().to_owned(), |(_, host)| text_of(host));
        let query = url.query().map(|query| format!("?{query}"));
        let asked = format!("GET {}{}", url.path(), query.unwrap_or_default());
        let words = vec![
            "explain".to_owned(),
            format!("--policy={}", policy.display()),
        ];
        let others = self.headers.iter().filter(|(name, _)| name != HOST);
        let others = others.map(|(name, value)| format!("{name}: {}", text_of(value)));
        let fields = others.chain([format!("host: {host}")]);
        let text = Explain::told(words, &asked, fields).ok()?;
        // What a token claims is not known here.
        if text.contains(CHECKS) || text.contains(CLAIMS) {
            return None;
        }
        let why = text.lines().find(|line| line.starts_with(NO_CHECKS))?;
        let another = match given {
            None => "; `-H 'host: api.example.com'` names another host",
            Some(_) => "",
        };
        Some(format!(
            "by the policy, `{asked}` at host `{host}` has {why}{another}"
        ))
    }
}

/// What a problem detail (RFC 9457) says, such as the filter's.
fn detail(body: &str) -> Option<String> {
    let problem: Value = serde_json::from_str(body).ok()?;
    Some(problem.get("detail")?.as_str()?.to_owned())
}

/// How many decisions the sidecar has counted that let a request pass.
async fn decisions(client: &Client) -> Result<f64, Failure> {
    let metrics = client.text(METRICS_PATH).await?;
    let counters = metrics.lines();
    let counters =
        counters.filter(|line| line.starts_with(DECISIONS) && !line.contains(OF_DENIALS));
    let values = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum())
}

fn url(text: &str) -> Result<String, &'static str> {
    let is_http = text.starts_with("http://");
    is_http.then(|| text.to_owned()).ok_or(
        "expected a URL that begins with http://, of a listener without TLS: http://127.0.0.1:10000/",
    )
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let pair = text.split_once(':');
    let pair = pair
        .and_then(|(name, value)| Some((name.trim().parse().ok()?, value.trim().parse().ok()?)));
    pair.ok_or("expected `name: value`, such as `x-api-key: k`")
}
