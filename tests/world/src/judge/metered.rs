//! No request is without a verdict while sidecars take another policy, except as `docs/upgrades.md` says.

use super::{BACK, CALLS, Judge, Wrong, meets, secs};
use crate::run::{Entry, What};
use crate::script::CONSUMERS;

impl Judge<'_> {
    /// Whether the sidecar of an entry ran then.
    fn is_up(&self, entry: &Entry) -> bool {
        let of = self
            .changes
            .iter()
            .filter(|one| one.sidecar == entry.sidecar && one.from <= entry.from);
        let mut last = of
            .rev()
            .filter(|one| matches!(one.what, What::Up | What::Down));
        last.next().is_some_and(|one| matches!(one.what, What::Up))
    }

    /// Whatever the rules of a fleet's filter ask for is decided.
    pub(super) fn metered(&self, wrong: &mut Vec<Wrong>) {
        let found = self.changes.iter().find(|entry| {
            let What::Unmetered { limit } = entry.what else {
                return false;
            };
            let span = (entry.from.saturating_sub(CALLS), entry.to);
            let mut limits = self.world.policies.iter().flatten().flatten();
            let leases = limits.any(|limit| limit.lease_ms.is_some());
            let mut disturbed = self.changes.iter().filter(|one| match one.what {
                What::Clock(_) | What::Down => meets((one.from, one.to), span),
                // A change ends leases of which a request has units while it waits for the verdict on another limit.
                What::Policy(_) | What::Override { .. } => {
                    leases && meets((one.from, one.to + BACK), span)
                }
                // Until it knows the overrides; and a new VM all sidecars, which may have different rules.
                What::Envoy | What::Up => meets((one.from, one.to + BACK), span),
                _ => false,
            });
            // A sidecar that has started again may never have had the earlier files, if it has no folder for them, or a full one,
            // or they were there while it was not: what one of the policies lacks it does not know.
            let everywhere =
                limit == CONSUMERS || self.limits(limit).count() == self.world.policies.len();
            let mut before = self.changes.iter().filter(|one| one.from <= entry.to);
            let may_have_lost = before.any(|one| match one.what {
                What::Down => !self.world.keeps_state,
                What::StateFull(full) => full,
                What::Policy(_) => !self.is_up(one),
                _ => false,
            });
            let replaced = !everywhere && may_have_lost;
            !replaced && !self.cut(span) && disturbed.next().is_none()
        });
        wrong.extend(found.map(|entry| Wrong {
            kind: "unmetered",
            what: format!(
                "{:?} by sidecar {} at {:.3} s",
                entry.what,
                entry.sidecar,
                secs(entry.from)
            ),
        }));
    }
}
