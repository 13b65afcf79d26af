//! `sluicegate check-store`: reports what is wrong with a store before decisions meet it.

use std::path::PathBuf;

use serde_json::json;
use sluicegate::policy::{Policy, StoreAddress};
use sluicegate::store::{Found, check};

use super::Failure;
use super::direct::store_address;
use super::output::{Output, totals};
use super::stdout::line;

/// Arguments of `check-store`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate check-store --policy policy.yaml\n\n\
                  It writes a few keys, which expire within ten seconds, and changes nothing else. It exits with 1 if something \
                  has to be changed.\n\nMore:\n  docs/redis.md"
)]
pub struct CheckStore {
    /// The policy (YAML), with the address of the store.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Overrides the policy's `store`. Pass a password in the environment variable instead: other users of this machine see
    /// arguments in the process list [env: SLUICEGATE_STORE].
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// What is found out about a policy's store, or the one of this argument; `None`: it is `memory`.
pub async fn found(policy: &Policy, store: Option<&str>) -> Result<Option<Found>, Failure> {
    Ok(match &store_address(policy, store)? {
        StoreAddress::Memory => None,
        StoreAddress::Redis(store) => Some(check(store, policy).await),
    })
}

impl CheckStore {
    pub async fn run(self) -> Result<(), Failure> {
        let policy = Policy::load(&self.policy).map_err(Failure::usage)?;
        let found = found(&policy, self.store.as_deref()).await?;
        let findings = found.unwrap_or_default().findings;
        let count = |state| findings.iter().filter(|one| one.state == state).count();
        let (errors, warnings) = (count("error"), count("warning"));
        let report = json!({ "errors": errors, "warnings": warnings, "findings": findings });
        self.output.print(&report, |_| {
            let mut text = String::new();
            for one in &findings {
                let told = [&*one.at, &one.check, &one.state, &one.text].join(": ");
                let remedy = one.remedy.iter().flat_map(|remedy| ["; ", remedy]);
                line!(text, "{told}{}", remedy.collect::<String>());
            }
            if findings.is_empty() {
                line!(text, "the store is `memory`: there is nothing to check");
            }
            text + &totals(errors, warnings) + "\n"
        })?;
        if errors > 0 {
            return Err(Failure::system("the store has to be changed"));
        }
        Ok(())
    }
}
