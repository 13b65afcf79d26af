//! No request is without a verdict while sidecars take another policy, except as `docs/upgrades.md` says.

use super::{BACK, CALLS, Judge, Wrong, meets, secs};
use crate::run::What;
use crate::script::CONSUMERS;

impl Judge<'_> {
    /// Whatever the rules of a fleet's filter ask for is decided.
    pub(super) fn metered(&self, wrong: &mut Vec<Wrong>) {
        let found = self.changes.iter().find(|entry| {
            let What::Unmetered { limit } = entry.what else {
                return false;
            };
            let span = (entry.from.saturating_sub(CALLS), entry.to);
            let mut disturbed = self.changes.iter().filter(|one| match one.what {
                What::Clock(_) | What::Down => meets((one.from, one.to), span),
                // Until it knows the overrides.
                What::Up => meets((one.from, one.to + BACK), span),
                _ => false,
            });
            // A sidecar that has started again never had the earlier files: what one of the policies lacks it may not know.
            let everywhere =
                limit == CONSUMERS || self.limits(limit).count() == self.world.policies.len();
            let mut ended = self
                .changes
                .iter()
                .filter(|one| matches!(one.what, What::Down));
            let replaced = !everywhere && ended.any(|one| one.from <= entry.to);
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
