//! The checks of a decision by the policy and the overrides in force: the only place that determines what they may take. Pure.

use std::sync::Arc;

use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{Code, Decision as Asked, Problem, part_of};

use super::buckets::unknown_limit;
use super::overridden::{Overridden, hold_until_end};
use super::overrides::{Effect, OverridesNow};
use crate::clock;
use crate::policy::{Limit, Policy, most};

/// A check that units have to decide.
#[derive(Clone, Copy, Debug)]
pub struct EffectiveCheck<'a> {
    /// Its index among the decision's checks.
    pub index: usize,
    /// Its key.
    pub key: &'a str,
    /// Its cost.
    pub cost: u64,
    /// Its limit.
    pub limit: &'a Arc<Limit>,
    windows: &'a [BucketSpec],
    /// Replaces the windows' own quota.
    quota: Option<u64>,
    /// Within how many microseconds its units will be settled, if the check says so.
    pub within_us: Option<u64>,
    /// Whether units that were taken in advance may decide it.
    pub leasable: bool,
}

/// All checks of a decision.
#[derive(Debug, Default)]
pub struct EffectiveChecks<'a> {
    /// The checks that units have to decide, those of one limit and key merged.
    pub checks: Vec<EffectiveCheck<'a>>,
    /// The strongest override that decides a check by itself.
    pub overridden: Option<Overridden<'a>>,
    /// For each check, the index of the check that it was merged into, or its own index.
    pub merged: Vec<usize>,
    /// How long a denial may be cached, in milliseconds: not beyond the end of an override of its quotas.
    pub most_hold_ms: u64,
    /// The limits of checks with a quota that the policy does not accept.
    pub refused_quotas: Vec<&'a Arc<Limit>>,
    /// The indices of checks with unknown limits, which are left out.
    pub unknown: Vec<usize>,
}

/// How long a denial by a limit that rules settle may be cached: units come back at any time.
const MOST_HOLD_SETTLED_MS: u64 = 250;

/// The longest time for which a denial may be cached.
pub fn denial_ttl_ms(policy: &Policy) -> u64 {
    clock::micros(policy.denial_ttl) / 1_000
}

impl<'a> EffectiveCheck<'a> {
    /// A check of this limit and key, by the limit's own windows.
    #[cfg(test)]
    pub fn of(limit: &'a Arc<Limit>, key: &'a str, cost: u64) -> Self {
        Self {
            index: 0,
            key,
            cost,
            limit,
            windows: &limit.windows,
            quota: None,
            within_us: None,
            leasable: true,
        }
    }

    /// The windows with the effective quota.
    pub fn windows(&self) -> impl Iterator<Item = BucketSpec> + Clone {
        self.windows.iter().map(|spec| BucketSpec {
            quota: self.quota.unwrap_or(spec.quota),
            ..*spec
        })
    }

    /// The largest cost that every window could ever admit.
    fn most(&self) -> u64 {
        most(self.windows())
    }

    /// Merges a check of the same limit and key; the smaller of two quotas applies.
    fn merge(&mut self, other: &Self) {
        self.cost = self.cost.saturating_add(other.cost);
        self.within_us = self.within_us.max(other.within_us);
        if self.quota != other.quota {
            self.quota = Some(self.most().min(other.most()));
        }
    }

    /// The problem of a cost that is larger than a window can ever hold.
    fn cost_problem(&self) -> Option<Problem> {
        let (index, cost) = (self.index, self.cost);
        let most = self.most().min(self.limit.most_of_check());
        (cost > most).then(|| {
            Problem::new(
                Code::CostOverLimit,
                format_args!(
                    "`checks[{index}].cost`: {cost} is more than limit `{}` ever holds ({most}): waiting cannot help, ask for less at a time",
                    self.limit.name
                ),
            )
            .at(format_args!("checks[{index}].cost"))
        })
    }
}

impl<'a> EffectiveChecks<'a> {
    /// Looks up the limits and overrides of a decision's checks. `names_unknown`: the answer may say which limits are unknown, if
    /// others are known.
    ///
    /// # Errors
    /// The policy lacks a limit, or a cost is more than its limit ever admits.
    pub fn of(
        policy: &'a Policy,
        asked: &'a Asked<'a>,
        overrides: OverridesNow<'a>,
        names_unknown: bool,
    ) -> Result<Self, Problem> {
        let mut all = Self {
            most_hold_ms: denial_ttl_ms(policy),
            ..Self::default()
        };
        for (index, check) in asked.checks.iter().enumerate() {
            let Some(limit) = policy.limit(&check.limit) else {
                all.unknown.push(index);
                all.merged.push(index);
                if !names_unknown || all.unknown.len() == asked.checks.len() || asked.receipt {
                    let field = format!("checks[{index}].limit");
                    return Err(unknown_limit(policy, &field, &check.limit));
                }
                continue;
            };
            let quota = limit.accepted_quota(check.quota);
            if check.quota.is_some() && quota.is_none() {
                all.refused_quotas.push(limit);
            }
            // As a block without an end; what costs nothing is admitted.
            let nothing = (limit.allows_nothing() && quota.is_none()).then(|| {
                let is_cost = check.cost > 0 || asked.settles(check);
                (
                    if is_cost {
                        &Effect::Blocked
                    } else {
                        &Effect::Unlimited
                    },
                    None,
                )
            });
            let found = overrides.find(&limit.name, &check.key).or(nothing);
            let (windows, quota, ends_in_ms) = match found {
                None => (limit.windows.as_slice(), quota, None),
                Some((Effect::Quotas(windows), ends_in_ms)) => (windows.as_ref(), None, ends_in_ms),
                Some((effect, ends_in_ms)) => {
                    all.merged.push(index);
                    all.override_by(Overridden {
                        check: index,
                        limit,
                        is_blocked: *effect == Effect::Blocked,
                        ends_in_ms,
                    });
                    continue;
                }
            };
            all.most_hold_ms = all.most_hold_ms.min(hold_until_end(ends_in_ms));
            if limit.is_settled {
                all.most_hold_ms = all.most_hold_ms.min(MOST_HOLD_SETTLED_MS);
            }
            let mut next = EffectiveCheck {
                index,
                key: &check.key,
                cost: check.cost,
                limit,
                windows,
                quota,
                within_us: check.within_ms.map(|ms| ms.saturating_mul(1_000)),
                leasable: limit.lease.is_some()
                    && found.is_none()
                    && quota.is_none()
                    && check.cost > 0
                    && !asked.peek
                    && !asked.settles(check),
            };
            if let Some(percent) = check.most {
                next.cost = next.cost.min(part_of(next.most(), percent));
            }
            all.add(next);
        }
        all.checks
            .iter()
            .find_map(EffectiveCheck::cost_problem)
            .map_or(Ok(all), Err)
    }

    /// Notes that an override decides a check.
    fn override_by(&mut self, next: Overridden<'a>) {
        if Some(next.rank()) > self.overridden.map(|earlier| earlier.rank()) {
            self.overridden = Some(next);
        }
    }

    /// Adds a check. Two checks of one limit and key in a decision become one with the sum of their costs: separately, both might be
    /// admitted into capacity that only one of them can take.
    fn add(&mut self, next: EffectiveCheck<'a>) {
        if let Some(terms) = &next.limit.lease {
            // Units may come back as soon as other sidecars' leases end.
            self.most_hold_ms = self.most_hold_ms.min(terms.longest_us / 1_000);
        }
        let is_same = |earlier: &&mut EffectiveCheck<'a>| {
            (earlier.limit.name == next.limit.name) && earlier.key == next.key
        };
        match self.checks.iter_mut().find(is_same) {
            Some(earlier) => {
                self.merged.push(earlier.index);
                earlier.merge(&next);
            }
            None => {
                self.merged.push(next.index);
                self.checks.push(next);
            }
        }
    }
}
