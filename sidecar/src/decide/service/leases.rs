//! Leases: keeps them while the sidecar runs, returns them when it stops, shows what they hold.

use std::collections::BTreeSet;
use std::time::Duration;

use sluicegate_protocol::{Decision, LEASES_HEADER, LeasePart, MAX_PARTS, PartReport, Problem};

use super::Service;
use crate::decide::epoch::Epoch;
use crate::decide::leases::{Admissions, Keeper, Leases, PartRequest};
use crate::policy::Policy;
use crate::telemetry::metrics::LeaseTotals;

/// What a filter that can spend parts of leases gets with its answer.
pub(super) struct Lending {
    /// Whether it can, by its request's header.
    can_spend: bool,
    wanted: Vec<PartRequest>,
}

impl Lending {
    /// Waits for the leases that a filter asks for, if the store has to be asked. Only for a call without decisions: nobody
    /// waits for its answer.
    pub async fn wait(&self, leases: &Leases, timeout: Duration) {
        if let Some(told) = leases.prepare(&self.wanted) {
            // A lease that has not arrived by then is not lent.
            let _ = tokio::time::timeout(timeout, told).await;
        }
    }

    /// Lends the units that the filter wants more of, and some of each leased key that it has asked about.
    pub fn lend(
        self,
        leases: &Leases,
        epoch: &Epoch,
        asked: &[Result<Decision<'_>, Problem>],
    ) -> Vec<LeasePart<'static>> {
        if !self.can_spend {
            return Vec::new();
        }
        let enforced = asked
            .iter()
            .flatten()
            .filter(|asked| asked.shadow.is_none());
        let mut seen = BTreeSet::new();
        let first = enforced
            .flat_map(|asked| &asked.checks)
            .filter_map(|check| {
                let limit = epoch.policy.limit(&check.limit)?;
                let is_new = limit.lease.is_some() && seen.insert((&check.limit, &check.key));
                is_new.then(|| leases.lend_first(limit, &check.key, epoch.number))?
            });
        let more = self.wanted.iter().filter_map(|more| leases.lend(more));
        more.chain(first).take(MAX_PARTS).collect()
    }
}

impl Service {
    /// Applies a filter's reports on its parts of leases.
    pub(super) fn lending<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        epoch: &Epoch,
        now_us: u64,
    ) -> Lending {
        let reports = header(LEASES_HEADER).and_then(PartReport::read_all);
        let can_spend = reports.is_some();
        let (admissions, mut wanted) = self.leases.account(&reports.unwrap_or_default());
        // What was taken under another epoch may be of a key that is blocked now, or of a limit without leases.
        wanted.retain(|more| more.key.epoch == epoch.number);
        for Admissions {
            lease,
            status,
            decisions,
        } in admissions
        {
            let metrics = &epoch.metrics;
            metrics.count_leased(&status, &lease.key.key, decisions, now_us);
        }
        Lending { can_spend, wanted }
    }

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
            backend: &self.backend,
            policy: &self.policy,
            denials: &self.denials,
        }
    }

    /// Returns what is leased, and announces to the store that this sidecar is shutting down.
    pub async fn leave(&self) {
        self.keeper().close().await;
        self.backend.leave().await;
    }

    /// What leases hold and have spent, if a limit of the policy in force has some.
    pub fn lease_totals(&self) -> Option<LeaseTotals> {
        let epoch = self.policy.current();
        epoch.metrics.lease_totals(&self.leases.held())
    }
}
