//! From checks to buckets and from outcomes back to verdicts. Pure, but for what certificates, leases and receipts need.

mod deciders;
mod open;

use std::sync::Arc;

use sluicegate_engine::{Batch, BatchBuilder, Bucket, Decision, Outcome, Take};
use sluicegate_protocol::{Decision as Asked, Problem};

use super::denials::{Denials, Moment};
use super::effective::EffectiveCheck;
use super::fallback::Fallback;
use super::leases::Leases;
use super::overrides::OverridesNow;
use crate::clock;
use crate::policy::{Limit, Policy};
use crate::telemetry::verdict::{Decided, Source};
use deciders::{ByCertificate, ByLease, ByOverride, ByPolicy, ByShare, ByStore, Decider};
use open::{Open, refused};

/// What decides before the store is asked.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// The overrides in force.
    pub overrides: OverridesNow<'a>,
    /// The cached denials, and when they were looked at.
    pub certificates: Option<(&'a Denials, Moment)>,
    /// The leases, and the epoch of the request.
    pub leases: Option<(&'a Arc<Leases>, u64)>,
}

impl<'a> Basis<'a> {
    /// Only these: then every decision is open that they do not decide.
    pub const fn of(policy: &'a Policy, overrides: OverridesNow<'a>) -> Self {
        Self {
            policy,
            overrides,
            certificates: None,
            leases: None,
        }
    }
}

/// A request's decisions: the verdicts that are known, and the rest as a batch for the store.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// For the store.
    pub batch: Arc<Batch>,
    decisions: Vec<Entry<'a>>,
    denial_ttl_ms: u64,
    /// The store must not decide: this sidecar does not know its overrides.
    pub without_store: bool,
    /// A key is asked for with several quotas.
    pub has_mixed_specs: bool,
    /// The limits of checks with a quota that the policy does not accept, one entry for each check.
    pub refused_quotas: Vec<&'a Arc<Limit>>,
}

#[derive(Debug)]
enum Entry<'a> {
    Decided(Decided),
    /// The store is asked.
    Open(Open<'a>),
}

/// Adds a decision that only peeks at a bucket.
pub fn peek(builder: &mut BatchBuilder, of: &Bucket) -> usize {
    let bucket = builder.bucket(of.key.clone(), of.spec);
    builder.push(Decision {
        takes: vec![Take { bucket, cost: 0 }],
        peek: true,
        receipts: Vec::new(),
    })
}

impl<'a> Plan<'a> {
    /// Decides what can be decided without the store, and collects the rest for it.
    pub fn new(basis: Basis<'a>, asked: &'a [Result<Asked<'a>, Problem>]) -> Self {
        let denial_ttl_ms = clock::micros(basis.policy.denial_ttl) / 1_000;
        let before_the_store: [&dyn Decider<'a>; 4] = [
            &ByCertificate(basis.certificates),
            &ByPolicy(basis),
            &ByOverride {
                unix_us: basis.overrides.unix_us(),
                denial_ttl_ms,
            },
            &ByLease(basis),
        ];
        let mut plan = Self {
            denial_ttl_ms,
            ..Self::default()
        };
        let mut builder = BatchBuilder::new();
        for (index, decision) in asked.iter().enumerate() {
            let entry = match decision {
                Err(problem) => Entry::Decided(refused(problem.clone())),
                Ok(asked) => {
                    let mut open = Open::new(index, asked);
                    let mut deciders = before_the_store.iter();
                    let decided = deciders.find_map(|decider| decider.decide(&mut open));
                    plan.refused_quotas.append(&mut open.all.refused_quotas);
                    decided
                        .or_else(|| open.add_to(&mut builder).err().map(refused))
                        .map_or(Entry::Open(open), Entry::Decided)
                }
            };
            plan.decisions.push(entry);
        }
        // After the decisions themselves: their order says which is which.
        for open in plan.decisions.iter_mut().filter_map(Entry::open_mut) {
            open.add_peeks_to(&mut builder);
        }
        plan.has_mixed_specs = builder.has_mixed_specs();
        plan.batch = Arc::new(builder.finish());
        plan
    }

    /// A plan that decides nothing: every decision is unavailable.
    pub fn unavailable(asked: &[Result<Asked<'_>, Problem>]) -> Self {
        let entry = |one: &Result<Asked<'_>, Problem>| {
            Entry::Decided(match one {
                Err(problem) => refused(problem.clone()),
                Ok(_) => Decided::unavailable(None, Source::Store, ""),
            })
        };
        Self {
            decisions: asked.iter().map(entry).collect(),
            ..Self::default()
        }
    }

    /// The decisions for the store with the limits that they take from, in the order of the batch.
    pub fn takes(&self) -> impl Iterator<Item = (&Decision, impl Iterator<Item = &Limit> + Clone)> {
        let limits = self.open().map(Open::limits);
        self.batch.decisions.iter().zip(limits)
    }

    /// The checks that leases might have decided and the store did, with its outcomes, and whether the check decided.
    pub fn for_leases<'p>(
        &'p self,
        outcomes: &'p [Option<Outcome>],
    ) -> impl Iterator<Item = (EffectiveCheck<'a>, &'p Outcome, bool)> {
        self.open()
            .zip(outcomes)
            .filter_map(|(open, outcome)| Some(open.for_leases(outcome.as_ref()?)))
            .flatten()
    }

    /// The verdicts, in the order of the request. An outcome is `None` if the store did not answer; then the fallback at the
    /// same index decides, if there is one. Spends what was taken from leases for decisions that are admitted at `now_us`, of
    /// the monotonic clock; the rest is put back.
    pub fn verdicts(
        self,
        outcomes: &[Option<Outcome>],
        fallbacks: &[Fallback],
        now_us: u64,
    ) -> Vec<Decided> {
        let asked: [&dyn Decider<'a>; 2] = [
            &ByStore {
                batch: &self.batch,
                outcomes,
                denial_ttl_ms: self.denial_ttl_ms,
                now_us,
            },
            &ByShare {
                batch: &self.batch,
                fallbacks,
                now_us,
            },
        ];
        let verdict = |entry| match entry {
            Entry::Decided(decided) => decided,
            Entry::Open(mut open) => asked
                .iter()
                .find_map(|decider| decider.decide(&mut open))
                .unwrap_or_else(|| open.unavailable(None, Source::Store)),
        };
        self.decisions.into_iter().map(verdict).collect()
    }

    fn open(&self) -> impl Iterator<Item = &Open<'a>> {
        self.decisions.iter().filter_map(|entry| match entry {
            Entry::Open(open) => Some(open),
            Entry::Decided(_) => None,
        })
    }
}

impl<'a> Entry<'a> {
    const fn open_mut(&mut self) -> Option<&mut Open<'a>> {
        match self {
            Self::Open(open) => Some(open),
            Self::Decided(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
