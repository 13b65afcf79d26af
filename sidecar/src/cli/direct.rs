//! Makes decisions in this process, on the shared store, for jobs on machines without a sidecar.

use std::path::PathBuf;
use std::time::Duration;

use sluicegate::decide::{PolicyHandle, Service};
use sluicegate::policy::{Policy, StoreAddress};
use sluicegate::store::{Health, Store};
use sluicegate::telemetry::metrics::Metrics;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Failure;
use super::client::Patience;

/// Shortest deadline of a store call. A policy's default suits a sidecar near its Redis with requests waiting; a job
/// may be a continent away from Redis and can wait.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// A policy whose store is used without a sidecar.
#[derive(clap::Args)]
pub struct Direct {
    /// Decide without a sidecar: apply this policy (YAML) in this process. Its store must be Redis.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Overrides the policy's `store`. Pass a password in the environment variable instead: other users of this machine
    /// see arguments in the process list [env: SLUICEGATE_STORE].
    // The variable is not declared to clap, which would require `--policy` wherever the variable is set.
    #[arg(long, value_name = "STORE", requires = "policy")]
    store: Option<String>,
}

/// A decision service in this process.
pub struct OnStore {
    pub service: Service,
    health: watch::Receiver<Health>,
}

impl OnStore {
    /// The store did not answer.
    pub fn unavailable(&self) -> Failure {
        match self.health.borrow().cause() {
            Some(cause) => Failure::unavailable(format_args!("the store does not answer: {cause}")),
            None => Failure::unavailable("the store did not answer in time"),
        }
    }
}

impl Direct {
    /// Opens the store if `--policy` is given.
    pub async fn open(&self, patience: &Patience) -> Result<Option<OnStore>, Failure> {
        let Some(path) = &self.policy else {
            return Ok(None);
        };
        let metrics = Metrics::new().map_err(Failure::system)?;
        let handle = PolicyHandle::load(path, None, &metrics).map_err(Failure::usage)?;
        let policy = &handle.current().policy;
        let address = store_address(policy, self.store.as_deref())?;
        if matches!(address, StoreAddress::Memory) {
            return Err(Failure::usage(format_args!(
                "{}: the store is `memory`, which loses its counts when this command ends: set `store: redis://HOST` there, \
                 or give `--store`, or ask a running sidecar (`--sidecar` instead of `--policy`)",
                path.display()
            )));
        }
        let store_timeout = policy
            .store_timeout
            .max(STORE_TIMEOUT)
            .min(patience.timeout);
        let store = Store::open(&address, store_timeout, policy.memory_limit);
        let mut health = store.health_changes();
        let service = Service::new(handle, store, metrics);
        // If the store is down, the verdicts say so; part of a Cluster may still answer.
        let ready = async {
            // The other end belongs to the store.
            let _ = health.wait_for(Health::is_up).await;
            service.wait_for_overrides(patience.timeout).await;
        };
        let _ = timeout(patience.timeout, ready).await;
        Ok(Some(OnStore { service, health }))
    }
}

/// The address of the store: the argument's, or else that of SLUICEGATE_STORE, or else the policy's.
pub fn store_address(policy: &Policy, argument: Option<&str>) -> Result<StoreAddress, Failure> {
    let given = argument.map(str::to_owned);
    let given = given.or_else(|| std::env::var("SLUICEGATE_STORE").ok());
    // A Secret that was made of a file often ends with a line break.
    match given.as_deref().map(str::trim) {
        None | Some("") => Ok(policy.store.clone()),
        Some(text) => policy
            .store
            .with_url(text)
            .map_err(|why| Failure::usage(format_args!("`--store` or SLUICEGATE_STORE is {why}"))),
    }
}
