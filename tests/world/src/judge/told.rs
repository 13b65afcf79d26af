//! What was said is so: a block blocks, a Retry-After is true.

use super::{CLOCK, Judge, MS, SOON, Use, Wrong, meets, secs};
use crate::filter::{By, Said};
use crate::run::What;
use crate::script::{Algorithm, Check, Grant, Limit};

/// After the last request: until what was leased has come back.
const CALM: u64 = 7_000 * MS;

impl Judge<'_> {
    /// A key that is blocked admits nothing.
    pub(super) fn blocked(&self, wrong: &mut Vec<Wrong>) {
        // What the store loses, sidecars know that go on.
        let restarts = self
            .changes
            .iter()
            .any(|one| matches!(one.what, What::Down));
        for (number, entry) in self.changes.iter().enumerate() {
            let What::Override {
                limit,
                key,
                grant: Some(Grant::Blocked),
                until,
                done: true,
            } = entry.what
            else {
                continue;
            };
            let others = self
                .changes
                .iter()
                .enumerate()
                .filter(|(other, later)| *other != number && later.to >= entry.from);
            let ends = others.filter_map(|(_, later)| match later.what {
                What::Override {
                    limit: of,
                    key: whose,
                    ..
                } if (of, whose) == (limit, key) => Some(later.from),
                What::Lost | What::OverridesLost if restarts => Some(later.from),
                _ => None,
            });
            let stepped = self.clocks.iter().any(|_| until.is_some());
            let until = ends.min().unwrap_or(u64::MAX).min(
                until
                    .filter(|_| !stepped)
                    .unwrap_or(if stepped { 0 } else { u64::MAX }),
            );
            for asked in self.log {
                let What::Asked {
                    checks,
                    peek: false,
                    said: Said::Admitted,
                    ..
                } = &asked.what
                else {
                    continue;
                };
                let of_it = checks
                    .iter()
                    .any(|check| (check.limit, check.key) == (limit, key));
                let cut = self.cut((entry.to, asked.to));
                if of_it && !cut && asked.from > entry.to + SOON && asked.to < until {
                    let what = format!(
                        "l{limit} k{key} is blocked and admitted at {:.3} s",
                        secs(asked.from)
                    );
                    wrong.push(Wrong {
                        kind: "blocked",
                        what,
                    });
                    return;
                }
            }
        }
    }

    /// Who asks again when Retry-After says, with nobody else there and nothing changed, is admitted.
    pub(super) fn again(&self, wrong: &mut Vec<Wrong>) {
        for (number, entry) in self.log.iter().enumerate() {
            let What::Asked {
                checks,
                said: Said::Denied { .. },
                again: true,
                ..
            } = &entry.what
            else {
                continue;
            };
            // The denial before it, by the same sidecar for the same.
            let before = self.log[..number].iter().rev().find(|one| {
                one.sidecar == entry.sidecar
                    && matches!(&one.what, What::Asked { checks: of, said: Said::Denied { retry_ms }, again: false, .. }
                        if of == checks && one.to + retry_ms * MS <= entry.from && one.to + (retry_ms + 5) * MS >= entry.from)
            });
            let Some(before) = before else { continue };
            // A cached denial was made up to a second earlier.
            let span = (before.from.saturating_sub(SOON), entry.to);
            let disturbed = self.log.iter().enumerate().any(|(other, one)| {
                let touches = |limit: usize, key: usize| {
                    checks
                        .iter()
                        .any(|check| (check.limit, check.key) == (limit, key))
                };
                other != number
                    && meets((one.from, one.to), span)
                    && match &one.what {
                        What::Asked {
                            checks: of,
                            said,
                            by,
                            peek,
                            ..
                        } => {
                            !peek
                                && *by != By::Cache
                                && !matches!(said, Said::Denied { .. } | Said::Refused)
                                && of.iter().any(|check| touches(check.limit, check.key))
                        }
                        What::Reset { limit, key, .. } => touches(*limit, *key),
                        _ => true,
                    }
            });
            let disturbed = disturbed
                || self.cut(span)
                || self.clocks.iter().any(|(at, _)| meets((*at, *at), span));
            // Units that lie idle in leases come back in between.
            let leases = checks
                .iter()
                .any(|check| self.longest_lease(check.limit) > 0);
            let unending = checks
                .iter()
                .any(|check| self.promises_nothing(check, before.to, entry.from));
            // A fleet's filter has cached denials by all of its sidecars, which may have different policies.
            let is_of_another = matches!(before.what, What::Asked { by: By::Cache, .. })
                && checks
                    .iter()
                    .any(|check| self.is_disputed(check.limit, before.from));
            if !disturbed && !leases && !unending && !is_of_another {
                let what = format!(
                    "{checks:?} denied at {:.3} s, promised for {:.3} s, denied again",
                    secs(before.from),
                    secs(entry.from)
                );
                wrong.push(Wrong {
                    kind: "retry",
                    what,
                });
                return;
            }
        }
    }

    /// Whether sidecars have different policies on a limit.
    fn is_disputed(&self, limit: usize, at: u64) -> bool {
        let versions = (0..self.world.sidecars).map(|sidecar| self.version(sidecar, at));
        let mut limits = versions.map(|version| &self.world.policies[version][limit]);
        let first = limits.next();
        limits.any(|other| Some(other) != first)
    }

    /// A block without an end promises nothing: its time is that of the longest window, after what hides the block.
    fn promises_nothing(&self, check: &Check, denied: u64, promised: u64) -> bool {
        let mut earlier = self.changes.iter().rev().filter(|one| one.from <= denied);
        let last = earlier.find_map(|one| match one.what {
            What::Lost => Some(None),
            What::Override {
                limit,
                key,
                until,
                done: true,
                ..
            } if (limit, key) == (check.limit, check.key) => Some(until),
            _ => None,
        });
        // An end by a clock that steps is not known.
        let known = |until: &u64| *until >= denied && self.clocks.is_empty();
        let hidden_until = last.flatten().filter(known);
        let ends = hidden_until.map_or(denied.saturating_sub(SOON), |until| until - 500 * MS);
        let mut windows = self.limits(check.limit).flat_map(|(_, of)| &of.windows);
        self.is_blocked_without_end(check)
            && windows.any(|window| promised >= ends + window.per_ms * MS)
    }

    fn is_blocked_without_end(&self, check: &Check) -> bool {
        self.limits(check.limit).any(|(_, of)| of.blocked == Some(check.key))
            || self.changes.iter().any(|one| {
                matches!(one.what, What::Override { limit, key, grant: Some(Grant::Blocked), until: None, .. }
                    if (limit, key) == (check.limit, check.key))
            })
    }

    /// A look finds no more left than what was not certainly taken, by shares too: nothing is forgotten. And when everything is
    /// calm, all of it: what was leased has come back.
    pub(super) fn looked(&self, healed: u64, wrong: &mut Vec<Wrong>) {
        let lost = self
            .changes
            .iter()
            .any(|one| matches!(one.what, What::Lost | What::Down));
        if !self.clocks.is_empty() || lost {
            return;
        }
        let last = self.log.iter().filter(|one| one.from < healed);
        let calm = last.map(|one| one.to).max().unwrap_or(0) + CALM;
        for ((limit, key), subject) in &self.subjects {
            let Some(of) = &self.world.policies[0][*limit] else {
                continue;
            };
            let same =
                |other: &Limit| other.windows == of.windows && other.algorithm == of.algorithm;
            let is_same = self.limits(*limit).all(|(_, other)| same(other))
                && self.limits(*limit).count() == self.world.policies.len();
            let ([window], [counted]) = (&of.windows[..], &subject.counted[..]) else {
                continue;
            };
            let tokens = matches!(of.algorithm, Algorithm::Token(_));
            let overridden = !self.overrides(*limit, *key).is_empty();
            let requests = self
                .limits(*limit)
                .any(|(_, of)| of.requests_up_to.is_some());
            if !is_same || !subject.forgotten.is_empty() || overridden || tokens || requests {
                continue;
            }
            for (number, check) in &subject.asked {
                let entry = &self.log[*number];
                let What::Asked {
                    checks,
                    peek: true,
                    said: Said::Admitted,
                    remaining: Some(left),
                    ..
                } = &entry.what
                else {
                    continue;
                };
                if checks.len() > 1 || self.cut((entry.from, entry.to)) {
                    continue;
                }
                let bucket = counted.bucket;
                let per = bucket.per_ms * MS;
                let window_of = |at| self.window_of(bucket, self.clock(at));
                // Whether a use is certainly held, and whether it may be.
                let held = |one: &Use| match bucket.algorithm {
                    Algorithm::Fixed | Algorithm::Day(_) => {
                        // A share follows the store's clock as it was known.
                        let early = if self.by_share(one) { CLOCK } else { 0 };
                        window_of(one.from.saturating_sub(early)) == window_of(entry.to)
                            && window_of(one.to) == window_of(entry.from)
                    }
                    _ => one.from + per > entry.to,
                };
                let may_be_held = |one: &Use| match bucket.algorithm {
                    Algorithm::Fixed | Algorithm::Day(_) => {
                        window_of(one.to) == window_of(entry.from) || held(one)
                    }
                    _ => one.to + per + per / 60 + 2_000 * MS > entry.from,
                };
                let before = counted.uses.iter().filter(|one| one.from <= entry.to);
                let certain = before
                    .clone()
                    .filter(|one| one.certain && one.to < entry.from && held(one));
                let returned = |one: &Use| -> u64 {
                    self.returned
                        .get(&one.entry)
                        .into_iter()
                        .flatten()
                        .map(|back| back.1)
                        .sum()
                };
                let taken: u64 = certain
                    .map(|one| one.units.saturating_sub(returned(one)))
                    .sum();
                let most: u64 = before
                    .filter(|one| may_be_held(one))
                    .map(|one| one.units)
                    .sum();
                let (kind, bound) = if *left > window.quota.saturating_sub(taken) {
                    ("forgotten", taken)
                } else if entry.from > calm
                    && self.outages.is_empty()
                    && *left < window.quota.saturating_sub(most)
                {
                    ("unaccounted", most)
                } else {
                    continue;
                };
                let what = format!(
                    "{check:?} has {left} left at {:.3} s, and {bound} of {} were taken",
                    secs(entry.to),
                    window.quota
                );
                wrong.push(Wrong { kind, what });
                return;
            }
        }
    }
}
