//! `sluicegate import`: a policy from another limiter's configuration.

use std::path::PathBuf;
use std::slice;

use clap::Subcommand;
use sluicegate::import::import;

use super::Failure;
use super::manifests::texts;
use super::stdout::{eprint, print};

/// Arguments of `import`.
#[derive(Subcommand)]
#[command(
    after_help = "Example:\n  sluicegate import envoy-ratelimit config/ --envoy envoy.yaml > policy.yaml\n\nMore:\n  docs/moving-envoy-ratelimit.md"
)]
pub enum Import {
    /// From envoyproxy/ratelimit: prints a policy, after comments that say what differs and what was not imported
    /// (docs/moving-envoy-ratelimit.md).
    #[command(
        after_help = "Example:\n  sluicegate import envoy-ratelimit config/ --envoy envoy.yaml > policy.yaml\n\nMore:\n  docs/moving-envoy-ratelimit.md"
    )]
    EnvoyRatelimit(EnvoyRatelimit),
}

/// Arguments of `import envoy-ratelimit`.
#[derive(clap::Args)]
pub struct EnvoyRatelimit {
    /// Its configuration: a file, a folder, or a Kubernetes manifest with a ConfigMap.
    #[arg(value_name = "DIR")]
    config: PathBuf,
    /// A file that contains `rate_limits` and the ratelimit filter: an Envoy configuration, or EnvoyFilters of Istio. A folder
    /// stands for all YAML and JSON files in it. Can be given several times.
    #[arg(long, value_name = "FILE")]
    envoy: Vec<PathBuf>,
    /// Write `shadow: true` into each limit: counted, not enforced.
    #[arg(long)]
    shadow: bool,
}

impl Import {
    pub fn run(self) -> Result<(), Failure> {
        let Self::EnvoyRatelimit(given) = self;
        let config = texts(slice::from_ref(&given.config))?;
        let envoy = texts(&given.envoy)?;
        let envoy = (!given.envoy.is_empty()).then_some(envoy.as_slice());
        let imported = import(&config, envoy, given.shadow).map_err(Failure::usage)?;
        print(&imported.policy)?;
        if let Some(why) = imported.mistake {
            return Err(Failure::usage(format!(
                "the sidecar refuses this policy: {why}"
            )));
        }
        let (limits, missing) = (imported.limits, imported.missing);
        eprint(&format!(
            "limits: {limits}, not imported: {missing}; the comments at the top say more\n"
        ));
        Ok(())
    }
}
