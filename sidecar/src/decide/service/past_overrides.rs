//! When a denial really ends, if an override of its checks ends first: from then on, what the override hides decides.

use futures_util::future::join_all;
use sluicegate_protocol::{Decision, LimitStatus, Problem, Verdict};
use tokio::time::timeout;

use super::Service;
use crate::clock;
use crate::decide::epoch::Epoch;
use crate::decide::overrides::OverridesNow;
use crate::decide::plan::{Basis, Plan};
use crate::telemetry::verdict::{Decided, Source};

impl Service {
    /// Corrects the waits of denials that outlast an override of their checks. Takes at most as long as one call to the store:
    /// waits that are not known by then stay as they are.
    pub(super) async fn look_past_overrides(
        &self,
        epoch: &Epoch,
        overrides: OverridesNow<'_>,
        asked: &[Result<Decision<'_>, Problem>],
        decided: &mut [Decided],
    ) {
        let peeks = decided
            .iter_mut()
            .zip(asked)
            .filter_map(|(decided, asked)| {
                let (Verdict::Denied(status), Ok(asked)) = (&mut decided.verdict, asked) else {
                    return None;
                };
                // A cached denial was corrected before.
                let is_new = decided.source != Source::Certificate;
                let any_ends = is_new && overrides.first_end_ms(&asked.checks).is_some();
                any_ends.then(|| self.look_past(epoch, overrides, asked, status))
            });
        let peeks: Vec<_> = peeks.collect();
        if !peeks.is_empty() {
            // On the heap, because most requests have none.
            let _ = Box::pin(timeout(self.store.timeout(), join_all(peeks))).await;
        }
    }

    /// Peeks at the decision as it would be after each end of an override that comes before the denial's own end.
    async fn look_past(
        &self,
        epoch: &Epoch,
        mut overrides: OverridesNow<'_>,
        asked: &Decision<'_>,
        status: &mut LimitStatus<'static>,
    ) {
        let peek = [Ok(Decision {
            peek: true,
            ..asked.clone()
        })];
        while let Some(end_ms) = overrides.first_end_ms(&asked.checks) {
            // From now on, as the denial's wait counts: the overrides' time is that of the question.
            let ends_in_ms = end_ms.saturating_sub(clock::unix_ms()).max(1);
            if status.retry_after_ms < ends_in_ms {
                return;
            }
            overrides.unix_ms = end_ms;
            let plan = Plan::new(Basis::of(&epoch.policy, overrides), &peek);
            let (outcomes, fallbacks) = self.backend.decide(&plan, None).await;
            let verdicts = plan.verdicts(&outcomes, &fallbacks, clock::now_us());
            status.retry_after_ms = match verdicts.first().map(|of| (of.source, &of.verdict)) {
                Some((_, Verdict::Admitted(_))) => ends_in_ms,
                // From that moment on.
                Some((Source::Override, Verdict::Denied(then))) => {
                    status.until_changed = then.until_changed;
                    ends_in_ms + then.retry_after_ms
                }
                // From now on.
                Some((_, Verdict::Denied(then))) => then.retry_after_ms.max(ends_in_ms),
                // It costs more than the quota then is, which has no end: as long as for a block without one.
                Some((_, Verdict::Error(_))) => {
                    status.until_changed = true;
                    ends_in_ms + status.window_ms
                }
                _ => return,
            };
            status.reset_ms = status.reset_ms.max(status.retry_after_ms);
        }
    }
}
