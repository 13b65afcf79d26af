//! Leases: keeps them while the sidecar runs, returns them when it stops, shows what they hold.

use std::collections::BTreeSet;

use sluicegate_protocol::{Decision, LEASES_HEADER, LeasePart, MAX_PARTS, PartReport, Problem};
use tokio::time::timeout;

use super::Service;
use crate::decide::epoch::Epoch;
use crate::decide::leases::{Keeper, PartRequest};

impl Service {
    /// Applies a filter's reports on its parts of leases. Returns the keys of which it wants more; `None` if it cannot spend parts.
    pub(super) fn account_parts<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        epoch: &Epoch,
        now_us: u64,
    ) -> Option<Vec<PartRequest>> {
        let reports = header(LEASES_HEADER).and_then(PartReport::read_all)?;
        let metrics = &epoch.metrics;
        let mut wanted = self.leases.account(&reports, |status, key, decisions| {
            metrics.count_leased(status, key, decisions, now_us);
        });
        // A part of another epoch may be of a key that is blocked now, or of a limit without leases.
        wanted.retain(|more| more.key.epoch == epoch.number);
        Some(wanted)
    }

    /// Waits for the leases that a filter asks for, if the store has to be asked. Only for a call without decisions: no
    /// request waits for its answer.
    pub(super) async fn prepare_parts(&self, wanted: &[PartRequest]) {
        if let Some(prepared) = self.leases.prepare(wanted) {
            // A lease that has not arrived by then is not lent.
            let _ = timeout(self.store.timeout(), prepared).await;
        }
    }

    /// Lends the units that the filter wants more of, and some of each leased key that it has asked about.
    pub(super) fn lend_parts(
        &self,
        wanted: &[PartRequest],
        epoch: &Epoch,
        asked: &[Result<Decision<'_>, Problem>],
    ) -> Vec<LeasePart<'static>> {
        let enforced = asked.iter().flatten();
        let enforced = enforced.filter(|asked| asked.shadow.is_none());
        let mut seen = BTreeSet::new();
        let checks = enforced.flat_map(|asked| &asked.checks);
        let first = checks.filter_map(|check| {
            let limit = epoch.policy.limit(&check.limit)?;
            let is_new = limit.lease.is_some() && seen.insert((&check.limit, &check.key));
            let lend = || (self.leases).lend(&limit.name, &check.key, epoch.number, None, 0);
            is_new.then(lend)?
        });
        let more = wanted.iter().filter_map(|more| {
            let (key, per_s) = (&more.key, Some(more.per_s));
            (self.leases).lend(&key.limit.name, &key.key, key.epoch, per_s, more.held)
        });
        more.chain(first).take(MAX_PARTS).collect()
    }

    /// Asks for leases, and gives back the units that were not spent, for ever.
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

    /// Returns the units of its leases, and announces to the store that this sidecar is shutting down.
    pub async fn leave(&self) {
        self.keeper().close().await;
        self.backend.leave().await;
    }
}
