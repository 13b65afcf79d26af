//! From checks to buckets and from outcomes back to verdicts. Pure.

mod add;
mod leased;

use std::sync::Arc;

use sluicegate_engine::{Batch, BatchBuilder, Bucket, Decision, Outcome, Take, receipt_key};
use sluicegate_protocol::{DECISIONS, Decision as Asked, LimitStatus, Problem, Verdict};

use super::fallback::Fallback;
use super::leases::{Held, Leases, MARKER_QUOTA};
use super::overridden::{How, Overridden};
use super::overrides::OverridesNow;
use super::receipts;
use crate::policy::{Limit, Policy};
use crate::telemetry::verdict::{Decided, Source};
use add::add;
pub use leased::leased_status;
use leased::{spend, tightest};

/// A request's decisions as a batch for the store, with what is needed to build the verdicts.
#[derive(Debug, Default)]
pub struct Plan {
    /// For the store.
    pub batch: Arc<Batch>,
    decisions: Vec<Entry>,
    denial_ttl_ms: u64,
    /// The store must not decide: this sidecar does not know its overrides.
    pub without_store: bool,
    /// A key is asked for with several quotas.
    pub has_mixed_specs: bool,
    /// The limits of checks with a quota that the policy does not accept, one entry for each check.
    pub refused_quotas: Vec<Arc<Limit>>,
}

/// What is known of a decision before the store is asked.
#[derive(Debug)]
enum Entry {
    Bad(Problem),
    /// Denied by a certificate.
    Held(LimitStatus<'static>),
    /// Decided by overrides; with the checks that need receipts.
    Overridden(Overridden, Vec<usize>),
    /// Every check is decided from a lease; with the indexes of the checks.
    Leased(Vec<(usize, Held)>),
    /// The store is asked.
    Planned(Planned),
}

/// The leases that checks may be decided from.
#[derive(Clone, Copy, Debug)]
pub struct Leasing<'a> {
    /// The leases.
    pub leases: &'a Arc<Leases>,
    /// The epoch of the request.
    pub epoch: u64,
}

/// A decision for the store. The batch has the planned decisions in the same order.
#[derive(Debug, Default)]
struct Planned {
    /// For each take of the decision in the batch: the index of its check, and the check's limit.
    sources: Vec<(usize, Arc<Limit>)>,
    /// If receipts are wanted: for each check, the index of the check that it was merged into, or its own index.
    receipts: Vec<usize>,
    /// The receipt secrets of the checks that were not merged into another, with their indexes.
    secrets: Vec<(usize, u128)>,
    /// Milliseconds until the first override of its quotas ends: a denial is not cached for longer.
    most_hold_ms: u64,
    /// The same while units may come back from leases of its limits.
    most_hold_leased_ms: u64,
    /// Of checks that were denied before: which they are, the markers of their leases, and the decision of the batch that looks
    /// at each.
    looks: Vec<(usize, Bucket, usize)>,
    /// What was taken from leases; the store is asked for the rest. Dropped, it is put back.
    leased: Vec<(usize, Held)>,
    /// The checks that a lease might have decided; their limits' leases learn from the outcome.
    leasable: Vec<usize>,
}

impl Planned {
    /// Whether it is known that nobody has leased units of the check that decided.
    fn has_nothing_leased(&self, decided: &Outcome, all: &[Option<Outcome>]) -> bool {
        let Some((check, _)) = self.sources.get(decided.decided_by) else {
            return false;
        };
        let look = self.looks.iter().find(|(of, ..)| of == check);
        let look = look.and_then(|(_, _, look)| all.get(*look)?.as_ref());
        // Sub-batches of one request may go in any order: a lease that was granted in between would not be seen.
        look.is_some_and(|look| look.remaining == MARKER_QUOTA && look.at_us >= decided.at_us)
    }

    fn receipt(&self, outcome: &Outcome) -> Vec<String> {
        if !outcome.admitted {
            return Vec::new();
        }
        let secret = |check: &usize| {
            let (_, secret) = self.secrets.iter().find(|(of, _)| of == check)?;
            Some(receipts::to_text(*secret))
        };
        self.receipts.iter().filter_map(secret).collect()
    }

    /// Adds the receipts that the store is to keep to a decision.
    fn leave_receipts(
        &mut self,
        asked: &Asked<'_>,
        (buckets, decision): (&[Bucket], &mut Decision),
        secret: impl Fn() -> Option<u128>,
    ) {
        let sources = self.sources.iter().zip(&decision.takes);
        let sources: Vec<_> = sources.collect();
        // The windows of a check are adjacent and share a receipt.
        for windows in sources.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
            let Some(((index, limit), take)) = windows.first() else {
                continue;
            };
            let (Some(check), Some(secret)) = (asked.checks.get(*index), secret()) else {
                continue;
            };
            let specs = windows.iter();
            let specs = specs.filter_map(|(_, take)| Some(&buckets.get(take.bucket)?.spec));
            let key = receipt_key(&check.key, &limit.name, secret);
            let receipt = receipts::receipt(key, take.cost, specs);
            decision.receipts.push(receipt);
            self.secrets.push((*index, secret));
        }
        // Checks that an override made unlimited took nothing, so their receipts return nothing.
        for index in &self.receipts {
            if !self.secrets.iter().any(|(known, _)| known == index)
                && let Some(secret) = secret()
            {
                self.secrets.push((*index, secret));
            }
        }
    }
}

/// Adds a decision that only looks at a bucket.
pub fn look(builder: &mut BatchBuilder, of: &Bucket) -> usize {
    let bucket = builder.bucket(of.key.clone(), of.spec);
    builder.push(Decision {
        takes: vec![Take { bucket, cost: 0 }],
        peek: true,
        receipts: Vec::new(),
    })
}

impl Plan {
    /// Looks up every check's limit and takes its units from a lease, or adds a take for each of its windows. `covering`
    /// returns the cached denial of a certificate that covers a decision.
    pub fn new(
        policy: &Policy,
        asked: &[Result<Asked<'_>, Problem>],
        overrides: OverridesNow<'_>,
        leasing: Option<Leasing<'_>>,
        covering: impl Fn(&Asked<'_>) -> Option<LimitStatus<'static>>,
    ) -> Self {
        let ttl_ms = u64::try_from(policy.denial_ttl.as_millis()).unwrap_or(u64::MAX);
        let mut plan = Self {
            denial_ttl_ms: ttl_ms,
            ..Self::default()
        };
        let mut builder = BatchBuilder::new();
        for (index, decision) in asked.iter().enumerate() {
            let entry = match decision {
                Err(problem) => Entry::Bad(problem.clone()),
                Ok(decision) => match covering(decision) {
                    Some(status) => Entry::Held(status),
                    None => {
                        let refused = &mut plan.refused_quotas;
                        add(policy, decision, overrides, leasing, &mut builder, refused)
                            .unwrap_or_else(|problem| {
                                Entry::Bad(problem.of_entry(DECISIONS, index))
                            })
                    }
                },
            };
            plan.decisions.push(entry);
        }
        // After the decisions themselves: their order says which is which.
        let planned = plan.decisions.iter_mut().filter_map(|entry| match entry {
            Entry::Planned(planned) => Some(planned),
            _ => None,
        });
        for (_, marker, look) in planned.flat_map(|planned| &mut planned.looks) {
            *look = self::look(&mut builder, marker);
        }
        plan.has_mixed_specs = builder.has_mixed_specs();
        plan.batch = Arc::new(builder.finish());
        plan
    }

    /// A plan that decides nothing: every decision is unavailable.
    pub fn unavailable(asked: &[Result<Asked<'_>, Problem>]) -> Self {
        let entry = |one: &Result<Asked<'_>, Problem>| match one {
            Err(problem) => Entry::Bad(problem.clone()),
            Ok(_) => Entry::Planned(Planned::default()),
        };
        Self {
            decisions: asked.iter().map(entry).collect(),
            ..Self::default()
        }
    }

    /// Adds receipts to the decisions that ask for them. `asked` is the request that the plan was made from; `secret` returns
    /// a new secret each time.
    pub fn leave_receipts(
        &mut self,
        asked: &[Result<Asked<'_>, Problem>],
        secret: impl Fn() -> Option<u128>,
    ) {
        if !asked.iter().flatten().any(|decision| decision.receipt) {
            return;
        }
        // Not shared yet, so nothing is copied.
        let Batch { buckets, decisions } = Arc::make_mut(&mut self.batch);
        let mut decisions = decisions.iter_mut();
        for (entry, asked) in self.decisions.iter_mut().zip(asked) {
            match entry {
                Entry::Planned(planned) => {
                    if let (Some(decision), Ok(asked)) = (decisions.next(), asked)
                        && !planned.receipts.is_empty()
                    {
                        planned.leave_receipts(asked, (buckets, decision), &secret);
                    }
                }
                Entry::Overridden(overridden, wanted) => {
                    if let How::Admitted { receipts } = &mut overridden.how {
                        receipts.extend(wanted.iter().filter_map(|_| secret()));
                    }
                }
                // A decision that asks for receipts is not made from leases.
                Entry::Bad(_) | Entry::Held(_) | Entry::Leased(_) => {}
            }
        }
    }

    /// The decisions for the store with the limits that they take from, in the order of the batch.
    pub fn takes(&self) -> impl Iterator<Item = (&Decision, impl Iterator<Item = &Limit> + Clone)> {
        let planned = self.decisions.iter().filter_map(|entry| match entry {
            Entry::Planned(planned) => Some(planned),
            Entry::Bad(_) | Entry::Held(_) | Entry::Overridden(..) | Entry::Leased(_) => None,
        });
        let limits = planned.map(|planned| planned.sources.iter().map(|(_, limit)| limit.as_ref()));
        self.batch.decisions.iter().zip(limits)
    }

    /// The verdicts, in the order of the request. An outcome is `None` if the store did not answer; then the fallback at the
    /// same index decides, if there is one. Spends what was taken from leases for decisions that are admitted at `now_us`, of
    /// the monotonic clock.
    pub fn verdicts<'a>(
        &'a self,
        outcomes: &[Option<Outcome>],
        fallbacks: &[Fallback],
        now_us: u64,
    ) -> Vec<Decided<'a>> {
        let fallbacks = fallbacks.iter().map(Some).chain(std::iter::repeat(None));
        let answers = outcomes.iter().zip(fallbacks);
        let mut asked = self.batch.decisions.iter().zip(answers);
        let mut verdicts = Vec::with_capacity(self.decisions.len());
        for entry in &self.decisions {
            let (limit, source, verdict) = match entry {
                Entry::Bad(problem) => ("", Source::Request, Verdict::Error(problem.clone())),
                Entry::Held(status) => (
                    status.limit.as_ref(),
                    Source::Certificate,
                    Verdict::Denied(status.clone()),
                ),
                Entry::Overridden(overridden, _) => (
                    overridden.limit.name.as_str(),
                    Source::Override,
                    overridden.verdict(self.denial_ttl_ms),
                ),
                Entry::Leased(leased) => {
                    spend(leased);
                    match tightest(leased) {
                        Some((limit, status)) => (limit, Source::Lease, Verdict::Admitted(status)),
                        None => ("", Source::Lease, Verdict::Unavailable { then: None }),
                    }
                }
                Entry::Planned(planned) => {
                    let (mut then, mut source) = (None, Source::Store);
                    let verdict = asked.next().and_then(|(decision, answer)| {
                        let outcome = match answer {
                            (Some(outcome), _) => outcome,
                            (None, Some(Fallback::Share(outcome))) => {
                                source = Source::Share;
                                outcome
                            }
                            (None, Some(Fallback::NoVerdict(say))) => {
                                then = planned.without_store(*say, now_us);
                                return None;
                            }
                            (None, None) => return None,
                        };
                        let free = planned.has_nothing_leased(outcome, outcomes);
                        let verdict = self.verdict(planned, decision, outcome, (source, free))?;
                        planned.with_leases(verdict, now_us)
                    });
                    let first = planned
                        .sources
                        .first()
                        .map_or("", |(_, limit)| limit.name.as_str());
                    let (limit, verdict) =
                        verdict.unwrap_or((first, Verdict::Unavailable { then }));
                    (limit, source, verdict)
                }
            };
            verdicts.push(Decided {
                limit,
                source,
                verdict,
            });
        }
        verdicts
    }

    fn verdict<'a>(
        &'a self,
        planned: &'a Planned,
        decision: &Decision,
        outcome: &Outcome,
        (source, nothing_leased): (Source, bool),
    ) -> Option<(&'a str, Verdict<'a>)> {
        let (check, limit) = planned.sources.get(outcome.decided_by)?;
        let take = decision.takes.get(outcome.decided_by)?;
        let spec = self.batch.buckets.get(take.bucket)?.spec;
        let status = LimitStatus {
            check: *check,
            limit: limit.name.as_str().into(),
            quota: spec.most_at_once(),
            window_ms: spec.refill_us(outcome.at_us).div_ceil(1_000),
            remaining: outcome.remaining,
            reset_ms: outcome.reset_us.div_ceil(1_000),
            retry_after_ms: outcome.retry_after_us.div_ceil(1_000),
            // Rounded down: a certificate may end early and never late.
            // A share's denial is not cached: the units may be available as soon as the store is back.
            hold_ms: if outcome.admitted || source == Source::Share {
                0
            } else {
                let mut most_ms = self.denial_ttl_ms.min(planned.most_hold_ms);
                if !nothing_leased {
                    most_ms = most_ms.min(planned.most_hold_leased_ms);
                }
                (outcome.retry_after_us / 1_000).min(most_ms)
            },
            receipt: if source == Source::Share {
                Vec::new()
            } else {
                planned.receipt(outcome)
            },
        };
        let verdict = if outcome.admitted {
            Verdict::Admitted(status)
        } else {
            Verdict::Denied(status)
        };
        Some((&limit.name, verdict))
    }
}

#[cfg(test)]
mod tests;
