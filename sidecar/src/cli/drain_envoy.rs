//! `sluicegate drain-envoy`: lets an Envoy finish its requests before it is stopped.

use std::time::{Duration, Instant};

use reqwest::Method;

use super::Failure;
use super::client::http;
use super::endpoint::Endpoint;

/// How often Envoy is asked, and how long it may take to answer.
const EVERY: Duration = Duration::from_millis(100);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Of each HTTP connection manager, and of the admin port, which answers this request.
const ACTIVE: &str = "/stats?filter=^http\\..*\\.downstream_rq_active$";

/// Arguments of `drain-envoy`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate drain-envoy --finish-within 60s\n\n\
                  From then on Envoy closes each connection after its next answer. Have Envoy started with \
                  `--drain-strategy immediate`: otherwise it does so with few connections at first.\n\nMore:\n  docs/install/host.md#restart-envoy"
)]
pub struct DrainEnvoy {
    /// Envoy's admin port.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    envoy_admin: Endpoint,
    /// Also accept no more connections, and wait until all requests have ended, at most this long.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    finish_within: Option<Duration>,
}

impl DrainEnvoy {
    pub async fn run(self) -> Result<(), Failure> {
        let http = http(&self.envoy_admin, ANSWERS_WITHIN)?;
        let ask = async |method, path| {
            let request = http.request(method, self.envoy_admin.url(path)).send();
            let answered = async { request.await?.error_for_status()?.text().await };
            answered.await.map_err(|error| {
                let (envoy, why) = (&self.envoy_admin, error.without_url());
                Failure::unavailable(format_args!(
                    "{envoy}: {why}; `--envoy-admin` must name Envoy's admin port"
                ))
            })
        };
        let drain = async |path| {
            let told = ask(Method::POST, path).await?;
            if told.trim() == "OK" {
                return Ok(());
            }
            Err(Failure::unavailable(format_args!(
                "{}: this is no admin port of Envoy",
                self.envoy_admin
            )))
        };
        drain("/drain_listeners?graceful&skip_exit").await?;
        let Some(within) = self.finish_within else {
            return Ok(());
        };
        drain("/drain_listeners").await?;
        let until = Instant::now() + within;
        while are_active(&ask(Method::GET, ACTIVE).await?) {
            if Instant::now() >= until {
                return Err(Failure::unavailable("requests are still under way"));
            }
            tokio::time::sleep(EVERY).await;
        }
        Ok(())
    }
}

fn are_active(stats: &str) -> bool {
    let mut others = stats
        .lines()
        .filter(|line| !line.starts_with("http.admin."));
    others.any(|line| !line.ends_with(": 0"))
}
