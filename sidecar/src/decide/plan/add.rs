//! Plans one decision: looks its checks up and adds their buckets to the batch. Pure.

use std::sync::Arc;

use sluicegate_engine::{BatchBuilder, BucketSpec, Decision, MAX_REQUEST_WEIGHT, Take, bucket_key};
use sluicegate_protocol::{Code, Decision as Asked, Problem};

use super::{Entry, Leasing, Planned};
use crate::clock;
use crate::decide::allowance::{Allowance, allowance};
use crate::decide::buckets::unknown_limit;
use crate::decide::leases;
use crate::decide::overridden::{How, Overridden, ends_later, hold_until_end};
use crate::decide::overrides::OverridesNow;
use crate::policy::{Limit, Policy, most};

/// A check for the store.
struct Wanted<'a> {
    index: usize,
    key: &'a str,
    cost: u64,
    limit: &'a Arc<Limit>,
    windows: &'a [BucketSpec],
    /// Replaces the windows' own quota.
    quota: Option<u64>,
    /// Whether units that were taken in advance may decide it.
    leasable: bool,
}

impl Wanted<'_> {
    /// The windows with the effective quota.
    fn windows(&self) -> impl Iterator<Item = BucketSpec> {
        self.windows.iter().map(|spec| BucketSpec {
            quota: self.quota.unwrap_or(spec.quota),
            ..*spec
        })
    }

    /// The largest cost that every window could ever admit.
    fn most(&self) -> u64 {
        most(self.windows())
    }

    fn as_wanted(&self) -> leases::Wanted<'_> {
        leases::Wanted {
            limit: self.limit,
            key: self.key,
            cost: self.cost,
        }
    }

    /// Merges a check of the same limit and key; the smaller of two quotas applies.
    fn merge(&mut self, other: &Self) {
        self.cost = self.cost.saturating_add(other.cost);
        if self.quota != other.quota {
            self.quota = Some(self.most().min(other.most()));
        }
    }
}

/// Plans one decision.
pub(super) fn add(
    policy: &Policy,
    asked: &Asked<'_>,
    overrides: OverridesNow<'_>,
    leasing: Option<Leasing<'_>>,
    builder: &mut BatchBuilder,
    refused_quotas: &mut Vec<Arc<Limit>>,
) -> Result<Entry, Problem> {
    // Every check is looked up before any bucket is added, so that an invalid decision adds none.
    let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(asked.checks.len());
    let mut receipts = Vec::new();
    let mut overridden: Option<Overridden> = None;
    let (mut most_hold_ms, mut most_hold_leased_ms) = (u64::MAX, u64::MAX);
    for (index, check) in asked.checks.iter().enumerate() {
        let limit = policy.limit(&check.limit).ok_or_else(|| {
            unknown_limit(policy, &format!("checks[{index}].limit"), &check.limit)
        })?;
        if check.quota.is_some() && limit.accepted_quota(check.quota).is_none() {
            refused_quotas.push(Arc::clone(limit));
        }
        let of_override = |how| Overridden {
            check: index,
            limit: Arc::clone(limit),
            how,
            unix_us: overrides.unix_us(),
        };
        match allowance(limit, &check.key, check.quota, overrides) {
            Allowance::Unlimited => {
                receipts.push(index);
                let admitted = || {
                    of_override(How::Admitted {
                        receipts: Vec::new(),
                    })
                };
                overridden.get_or_insert_with(admitted);
            }
            Allowance::Blocked { ends_in_ms } => {
                let is_stronger = match overridden.as_ref().map(|earlier| &earlier.how) {
                    Some(How::Denied {
                        ends_in_ms: earlier,
                    }) => ends_later(ends_in_ms, *earlier),
                    Some(How::Admitted { .. }) | None => true,
                };
                if is_stronger {
                    overridden = Some(of_override(How::Denied { ends_in_ms }));
                }
            }
            Allowance::Windows {
                windows,
                quota,
                ends_in_ms,
                overridden,
            } => {
                most_hold_ms = most_hold_ms.min(hold_until_end(ends_in_ms));
                if let Some(terms) = &limit.lease {
                    // Units may come back as soon as other sidecars' leases end.
                    most_hold_leased_ms = most_hold_leased_ms.min(terms.longest_us / 1_000);
                }
                // Two checks of the same limit and key in one decision are one check of both costs: separately, both might
                // be admitted into capacity that only one of them can take.
                let same = wanted
                    .iter_mut()
                    .find(|earlier| earlier.limit.name == check.limit && earlier.key == check.key);
                receipts.push(same.as_ref().map_or(index, |earlier| earlier.index));
                let next = Wanted {
                    index,
                    key: &check.key,
                    cost: check.cost,
                    limit,
                    windows,
                    quota,
                    leasable: limit.lease.is_some()
                        && !overridden
                        && quota.is_none()
                        && check.cost > 0
                        && !asked.peek
                        && !asked.receipt,
                };
                match same {
                    Some(earlier) => earlier.merge(&next),
                    None => wanted.push(next),
                }
            }
        }
    }
    if !asked.receipt || asked.peek {
        receipts.clear();
    }
    for check in &wanted {
        let (index, cost, most) = (check.index, check.cost, check.most());
        if cost > most {
            return Err(Problem::new(
                Code::CostOverLimit,
                format_args!(
                    "`checks[{index}].cost`: {cost} is more than limit `{}` ever holds ({most}): waiting cannot help, ask for less at a time",
                    check.limit.name
                ),
            )
            .at(format_args!("checks[{index}].cost")));
        }
    }
    match overridden {
        Some(denied) if matches!(denied.how, How::Denied { .. }) => {
            return Ok(Entry::Overridden(denied, Vec::new()));
        }
        Some(admitted) if wanted.is_empty() => return Ok(Entry::Overridden(admitted, receipts)),
        _ => {}
    }
    let (mut leased, mut leasable, mut looks) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(Leasing { leases, epoch }) = leasing {
        let alone = wanted.len() == 1;
        wanted.retain(|check| {
            if !check.leasable {
                return true;
            }
            match leases.take(check.as_wanted(), epoch, alone) {
                Some(held) => {
                    leased.push((check.index, held));
                    false
                }
                None => {
                    leasable.push(check.index);
                    let longest_us = check.limit.lease.map_or(0, |terms| terms.longest_us);
                    let may_be_longer = clock::micros(policy.denial_ttl) > longest_us;
                    if may_be_longer && leases.was_denied(check.as_wanted(), epoch) {
                        let marker = leases::marker(check.limit, check.key);
                        looks.extend(marker.map(|marker| (check.index, marker, usize::MAX)));
                    }
                    true
                }
            }
        });
        if wanted.is_empty() {
            return Ok(Entry::Leased(leased));
        }
    }
    let visits: usize = wanted.iter().map(|check| check.windows.len()).sum();
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
    for check in wanted {
        for spec in check.windows() {
            let bucket = builder.bucket(bucket_key(check.key, &check.limit.name, &spec), spec);
            takes.push(Take {
                bucket,
                cost: check.cost,
            });
            sources.push((check.index, Arc::clone(check.limit)));
        }
    }
    builder.push(Decision {
        takes,
        peek: asked.peek,
        receipts: Vec::new(),
    });
    Ok(Entry::Planned(Planned {
        sources,
        receipts,
        secrets: Vec::new(),
        most_hold_ms,
        most_hold_leased_ms,
        looks,
        leased,
        leasable,
    }))
}
