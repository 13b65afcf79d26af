//! Leases: keeps them while the sidecar runs, returns them when it stops, shows what they hold.

use super::Service;
use crate::decide::leases::Keeper;
use crate::policy::Policy;
use crate::telemetry::metrics::LeaseTotals;

impl Service {
    /// Ends the leases of limits and keys that were reset.
    pub(super) fn end_leases(&self, policy: &Policy, reset: &[(&str, &str)]) {
        let leased = reset.iter().filter_map(|(limit, key)| {
            let limit = policy.limit(limit)?;
            limit.lease.is_some().then_some((limit, *key))
        });
        self.leases.end(leased);
    }

    /// Asks for leases and returns what was not spent. Never returns.
    pub async fn keep_leases(&self) {
        self.keeper().run().await;
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper {
            leases: &self.leases,
            settler: &self.settler,
            policy: &self.policy,
            denials: &self.denials,
        }
    }

    /// Returns what is leased, and announces to the store that this sidecar is shutting down.
    pub async fn leave(&self) {
        self.keeper().close().await;
        self.settler.leave().await;
    }

    /// What leases hold and have spent, if a limit of the policy in force has some.
    pub fn lease_totals(&self) -> Option<LeaseTotals> {
        let spent = self.policy.current().metrics.spent_by_leases()?;
        Some(LeaseTotals {
            held: self.leases.held().values().sum(),
            spent,
        })
    }
}
