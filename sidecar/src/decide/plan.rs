//! From checks to buckets and from outcomes back to verdicts. Pure.

use std::sync::Arc;

use sluicegate_engine::{
    Algorithm, Batch, BatchBuilder, BucketSpec, Decision, MAX_REQUEST_WEIGHT, Take, bucket_key,
};
use sluicegate_protocol::{Code, Decision as Asked, Problem, Standing, Verdict};

use super::buckets::unknown_limit;
use super::instead::Instead;
use super::receipts;
use crate::policy::{Limit, Policy};
use crate::store::Settled;
use crate::telemetry::verdict::{Source, Told};

/// What was asked, ready for a store, and what is needed to answer it.
#[derive(Debug, Default)]
pub struct Plan {
    /// For the store.
    pub batch: Arc<Batch>,
    decisions: Vec<Entry>,
    denial_ttl_ms: u64,
}

/// What is known of a decision before the store is asked.
#[derive(Debug)]
enum Entry {
    Bad(Problem),
    /// A certificate covers it.
    Held(Standing<'static>),
    /// The store is asked.
    Planned(Planned),
}

/// A decision that the store is asked for: its place in the batch is its place among the good ones.
#[derive(Debug)]
struct Planned {
    /// For each take of the decision in the batch: which check it is of, and that check's limit.
    sources: Vec<(usize, Arc<Limit>)>,
    /// Where a receipt is wanted: for each check the one that stands for it, itself unless it is asked twice.
    receipts: Vec<usize>,
    /// The secrets of those that stand for themselves, by their checks.
    secrets: Vec<(usize, u128)>,
}

impl Planned {
    fn receipt(&self, settled: &Settled) -> Vec<String> {
        if !settled.outcome.admitted {
            return Vec::new();
        }
        let told = |check: &usize| {
            let (_, secret) = self.secrets.iter().find(|(of, _)| of == check)?;
            Some(receipts::told(*secret))
        };
        self.receipts.iter().filter_map(told).collect()
    }

    /// Adds to a decision the receipts that it is to leave behind.
    fn leave_receipts(
        &mut self,
        asked: &Asked<'_>,
        decision: &mut Decision,
        mut secret: impl FnMut() -> Option<u128>,
    ) {
        let mut takes = self.sources.iter().zip(&decision.takes).peekable();
        while let Some(((index, limit), take)) = takes.next() {
            // The windows of a check stand together, and share a receipt.
            while takes.next_if(|((other, _), _)| other == index).is_some() {}
            let (Some(check), Some(secret)) = (asked.checks.get(*index), secret()) else {
                continue;
            };
            let receipt = receipts::receipt(limit, &check.key, take.cost, secret);
            decision.receipts.push(receipt);
            self.secrets.push((*index, secret));
        }
    }
}

impl Plan {
    /// Looks every check's limit up and spreads it over its windows. `covering` gives the denial of a certificate
    /// that covers a decision.
    pub fn new(
        policy: &Policy,
        asked: &[Result<Asked<'_>, Problem>],
        covering: impl Fn(&Asked<'_>) -> Option<Standing<'static>>,
    ) -> Self {
        let ttl_ms = u64::try_from(policy.denial_ttl.as_millis()).unwrap_or(u64::MAX);
        let mut plan = Self {
            denial_ttl_ms: ttl_ms,
            ..Self::default()
        };
        let mut builder = BatchBuilder::new();
        for decision in asked {
            let entry = match decision {
                Err(problem) => Entry::Bad(problem.clone()),
                Ok(decision) => match covering(decision) {
                    Some(standing) => Entry::Held(standing),
                    None => {
                        add(policy, decision, &mut builder).map_or_else(Entry::Bad, Entry::Planned)
                    }
                },
            };
            plan.decisions.push(entry);
        }
        plan.batch = Arc::new(builder.finish());
        plan
    }

    /// Has the decisions that ask for it leave receipts; `asked` is what the plan was made of, and `secret` gives a new one
    /// each time.
    pub fn leave_receipts(
        &mut self,
        asked: &[Result<Asked<'_>, Problem>],
        secret: impl Fn() -> Option<u128>,
    ) {
        if !asked.iter().flatten().any(|decision| decision.receipt) {
            return;
        }
        // Not shared yet, so nothing is copied.
        let mut decisions = Arc::make_mut(&mut self.batch).decisions.iter_mut();
        for (entry, asked) in self.decisions.iter_mut().zip(asked) {
            if let Entry::Planned(planned) = entry
                && let (Some(decision), Ok(asked)) = (decisions.next(), asked)
                && !planned.receipts.is_empty()
            {
                planned.leave_receipts(asked, decision, &secret);
            }
        }
    }

    /// What each decision that the store is asked for takes, and from which limits; in the order of the batch.
    pub fn takes(&self) -> impl Iterator<Item = (&Decision, impl Iterator<Item = &Limit> + Clone)> {
        let planned = self.decisions.iter().filter_map(|entry| match entry {
            Entry::Planned(planned) => Some(planned),
            Entry::Bad(_) | Entry::Held(_) => None,
        });
        let limits = planned.map(|planned| planned.sources.iter().map(|(_, limit)| limit.as_ref()));
        self.batch.decisions.iter().zip(limits)
    }

    /// The verdicts in the order asked; `settled` has nothing where the store did not answer. There `instead` says what
    /// decides, if anything does; it may be shorter.
    pub fn verdicts<'a>(
        &'a self,
        settled: &[Option<Settled>],
        instead: &[Instead],
    ) -> Vec<Told<'a>> {
        let instead = instead.iter().map(Some).chain(std::iter::repeat(None));
        let answers = settled.iter().zip(instead);
        let mut asked = self.batch.decisions.iter().zip(answers);
        let mut verdicts = Vec::with_capacity(self.decisions.len());
        for entry in &self.decisions {
            let (limit, source, verdict) = match entry {
                Entry::Bad(problem) => ("", Source::Request, Verdict::from(problem.clone())),
                Entry::Held(standing) => (
                    standing.limit.as_ref(),
                    Source::Certificate,
                    Verdict::Denied(standing.clone()),
                ),
                Entry::Planned(planned) => {
                    let (mut then, mut source) = (None, Source::Store);
                    let told = asked.next().and_then(|(decision, answer)| {
                        let settled = match answer {
                            (Some(settled), _) => settled,
                            (None, Some(Instead::Share(settled))) => {
                                source = Source::Share;
                                settled
                            }
                            (None, Some(Instead::Say(say))) => {
                                then = *say;
                                return None;
                            }
                            (None, None) => return None,
                        };
                        self.verdict(planned, decision, settled, source)
                    });
                    let first = planned
                        .sources
                        .first()
                        .map_or("", |(_, limit)| limit.name.as_str());
                    let (limit, verdict) = told.unwrap_or((first, Verdict::Unavailable { then }));
                    (limit, source, verdict)
                }
            };
            verdicts.push(Told {
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
        settled: &Settled,
        source: Source,
    ) -> Option<(&'a str, Verdict<'a>)> {
        let outcome = settled.outcome;
        let (check, limit) = planned.sources.get(outcome.decided_by)?;
        let take = decision.takes.get(outcome.decided_by)?;
        let spec = self.batch.buckets.get(take.bucket)?.spec;
        let standing = Standing {
            check: *check,
            limit: limit.name.as_str().into(),
            quota: spec.most_at_once(),
            window_ms: window_us(&spec).div_ceil(1_000),
            remaining: outcome.remaining,
            reset_ms: outcome.reset_us.div_ceil(1_000),
            retry_after_ms: outcome.retry_after_us.div_ceil(1_000),
            // Rounded down: a certificate may end early and never late.
            // What a share denies has room as soon as the store is back.
            hold_ms: if outcome.admitted || source == Source::Share {
                0
            } else {
                (outcome.retry_after_us / 1_000).min(self.denial_ttl_ms)
            },
            receipt: if source == Source::Share {
                Vec::new()
            } else {
                planned.receipt(settled)
            },
        };
        let verdict = if outcome.admitted {
            Verdict::Admitted(standing)
        } else {
            Verdict::Denied(standing)
        };
        Some((&limit.name, verdict))
    }
}

/// Plans one decision.
fn add(policy: &Policy, asked: &Asked<'_>, builder: &mut BatchBuilder) -> Result<Planned, Problem> {
    // Every check is looked up before any bucket is made, so that a bad decision leaves none behind.
    let mut wanted: Vec<(usize, Arc<Limit>, u64)> = Vec::with_capacity(asked.checks.len());
    let mut receipts = Vec::new();
    for (index, check) in asked.checks.iter().enumerate() {
        let limit = policy.limit(&check.limit).ok_or_else(|| {
            unknown_limit(policy, &format!("checks[{index}].limit"), &check.limit)
        })?;
        // The same limit for the same key twice in one decision is one check of both costs:
        // looked at one by one, each might find the room that only one of them can have.
        let same = wanted.iter_mut().find(|(earlier, _, _)| {
            asked
                .checks
                .get(*earlier)
                .is_some_and(|e| e.limit == check.limit && e.key == check.key)
        });
        receipts.push(same.as_ref().map_or(index, |(earlier, _, _)| *earlier));
        match same {
            Some((_, _, cost)) => *cost = cost.saturating_add(check.cost),
            None => wanted.push((index, Arc::clone(limit), check.cost)),
        }
    }
    if !asked.receipt || asked.peek {
        receipts.clear();
    }
    for (index, limit, cost) in &wanted {
        let most = limit.most();
        if *cost > most {
            return Err(Problem::new(
                Code::CostOverLimit,
                format_args!(
                    "`checks[{index}].cost`: {cost} is more than limit `{}` ever holds ({most}): waiting cannot help, ask for less at a time",
                    limit.name
                ),
            ));
        }
    }
    let visits: usize = wanted.iter().map(|(_, limit, _)| limit.windows.len()).sum();
    if builder.weight() + visits > MAX_REQUEST_WEIGHT {
        return Err(Problem::new(
            Code::RequestTooLarge,
            format_args!(
                "`decisions`: with this one the request asks for {} buckets (its checks, each counted once for each window of its limit), and a request may ask for {MAX_REQUEST_WEIGHT}: send the decisions in several requests",
                builder.weight() + visits
            ),
        ));
    }
    let mut sources = Vec::with_capacity(wanted.len());
    let mut takes = Vec::with_capacity(wanted.len());
    for (index, limit, cost) in wanted {
        let Some(check) = asked.checks.get(index) else {
            continue;
        };
        for spec in &limit.windows {
            let key = bucket_key(&check.key, &limit.name, spec);
            let bucket = builder.bucket(key, *spec);
            takes.push(Take { bucket, cost });
            sources.push((index, Arc::clone(&limit)));
        }
    }
    builder.push(Decision {
        takes,
        peek: asked.peek,
        receipts: Vec::new(),
    });
    Ok(Planned {
        sources,
        receipts,
        secrets: Vec::new(),
    })
}

/// The time in which the whole quota comes back: for a token bucket that of its burst at its rate.
fn window_us(spec: &BucketSpec) -> u64 {
    match spec.algorithm {
        Algorithm::TokenBucket { burst } => {
            let rate = spec.token_rate();
            burst
                .saturating_mul(rate.per_unit)
                .div_ceil(rate.per_us.max(1))
        }
        _ => spec.window_us,
    }
}
