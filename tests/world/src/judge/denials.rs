//! Never wrongly denied: denials of which it is certain that there was room.

use super::{Bucket, CLOCK, Claim, Judge, MS, SOON, Use, Wrong, meets, secs};
use crate::filter::Said;
use crate::run::What;
use crate::script::Algorithm;

impl Judge<'_> {
    /// Denials of which it is certain that there was room, and looks that found less than there was.
    pub(super) fn denials(
        &self,
        limit: usize,
        key: usize,
        buckets: &[Bucket],
        wrong: &mut Vec<Wrong>,
    ) {
        let versions = self.limits(limit).count();
        let simple = versions == self.world.policies.len()
            && self.limits(limit).all(|(_, of)| {
                !of.leases && of.blocked != Some(key) && of.requests_up_to.is_none()
            });
        if !simple || !self.overrides(limit, key).is_empty() {
            return;
        }
        let used: Vec<(Bucket, Vec<Use>, Vec<Claim>)> = buckets
            .iter()
            .map(|bucket| (*bucket, self.uses(*bucket), self.claims(*bucket)))
            .collect();
        let least = self.world.sidecars as u64;
        for entry in self.log {
            let What::Asked {
                checks,
                said: Said::Denied { .. },
                ..
            } = &entry.what
            else {
                continue;
            };
            let [check] = &checks[..] else { continue };
            if (check.limit, check.key) != (limit, key) {
                continue;
            }
            let of_shares = self
                .outages
                .iter()
                .any(|one| meets(*one, (entry.from, entry.to)));
            // What was taken before a reset counts no longer, in the sidecar that was told.
            let resets = self.log.iter().filter(|one| {
                let told = one.sidecar == entry.sidecar && entry.from > one.to + SOON;
                let calm = !self.outages.iter().any(|outage| meets(*outage, (one.from, one.to)));
                told && calm
                    && matches!(one.what, What::Reset { limit: of, key: whose, done: true } if (of, whose) == (limit, key))
            });
            let since = resets.map(|one| one.from).max().unwrap_or(0);
            let full = used.iter().any(|(bucket, uses, claims)| {
                let per = bucket.per_ms * MS;
                let held = per
                    + per / 60
                    + 1
                    + match bucket.algorithm {
                        Algorithm::Sliding(precision) => precision * MS,
                        _ => 0,
                    };
                // After a step back a key is held from its first request on, whenever that is.
                let back = self
                    .clocks
                    .iter()
                    .any(|(at, by)| *by < 0 && *at <= entry.to);
                let stepped = |span: (u64, u64)| {
                    back || of_shares && !self.clocks.is_empty()
                        || self.clocks.iter().any(|(at, _)| meets((*at, *at), span))
                };
                let mut in_force = claims.iter().filter(|claim| {
                    meets(
                        (claim.from, claim.to),
                        (entry.from.saturating_sub(2 * held), entry.to),
                    )
                });
                let changes = claims
                    .iter()
                    .any(|claim| claim.from > 0 || claim.to < u64::MAX);
                let quota = in_force.clone().map(|claim| claim.quota).min().unwrap_or(0);
                let quota = if of_shares { quota / least } else { quota };
                match bucket.algorithm {
                    Algorithm::Token(_) => {
                        let burst = in_force.map(|claim| claim.burst).min().unwrap_or(0);
                        let burst = if of_shares { burst / least } else { burst };
                        if changes
                            || stepped((0, entry.to))
                            || of_shares
                            || !self.outages.is_empty()
                            || quota == 0
                        {
                            return true;
                        }
                        let (mut level, mut at) = (0_u128, 0_u64);
                        for one in uses
                            .iter()
                            .filter(|one| one.to >= since && one.from <= entry.to)
                        {
                            level = level.saturating_sub(
                                u128::from(one.to.min(entry.to).saturating_sub(at))
                                    * u128::from(quota),
                            );
                            at = at.max(one.to.min(entry.to));
                            level += u128::from(one.taken) * u128::from(per);
                        }
                        let now = entry.from.saturating_sub(SOON).max(at);
                        level = level.saturating_sub(u128::from(now - at) * u128::from(quota));
                        level + u128::from(check.cost) * u128::from(per)
                            > u128::from(burst) * u128::from(per)
                    }
                    Algorithm::Fixed | Algorithm::Day(_) => {
                        let window = self.window_of(*bucket, self.clock(entry.from));
                        if in_force.next().is_none()
                            || window
                                != self.window_of(
                                    *bucket,
                                    self.clock(entry.from.saturating_sub(CLOCK)),
                                )
                            || window != self.window_of(*bucket, self.clock(entry.to))
                            || stepped((entry.from.saturating_sub(2 * per), entry.to))
                        {
                            return true;
                        }
                        // A cached denial of the window before ends with it.
                        let inside = |at| self.window_of(*bucket, self.clock(at)) == window;
                        let units: u64 = uses
                            .iter()
                            .filter(|one| {
                                one.to >= since
                                    && one.from <= entry.to
                                    && (inside(one.from) || inside(one.to))
                            })
                            .map(|one| one.taken)
                            .sum();
                        units + check.cost > quota
                    }
                    _ => {
                        let horizon = entry.from.saturating_sub(held);
                        if stepped((entry.from.saturating_sub(2 * held), entry.to)) {
                            return true;
                        }
                        let recent = uses.iter().filter(|one| {
                            one.to >= since && one.from <= entry.to && one.to + 1 >= horizon
                        });
                        let units: u64 = recent.map(|one| one.taken).sum();
                        units + check.cost > quota
                    }
                }
            });
            if !full {
                let what = format!(
                    "l{limit} k{key} cost {} is denied at {:.3} s (answered {:.3}) with room in every window",
                    check.cost,
                    secs(entry.from),
                    secs(entry.to)
                );
                wrong.push(Wrong {
                    kind: "wrongly denied",
                    what,
                });
                return;
            }
        }
    }
}
