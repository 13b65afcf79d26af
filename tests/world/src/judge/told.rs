//! What was said is so: a block blocks, a Retry-After is true.

use super::{Bucket, Judge, MS, SOON, Use, Wrong, meets, secs};
use crate::filter::{By, Said};
use crate::run::What;
use crate::script::{Algorithm, Grant};

impl Judge<'_> {
    /// A key that is blocked admits nothing.
    pub(super) fn blocked(&self, wrong: &mut Vec<Wrong>) {
        for (number, entry) in self.log.iter().enumerate() {
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
                .log
                .iter()
                .enumerate()
                .filter(|(other, later)| *other != number && later.to >= entry.from);
            let ends = others.filter_map(|(_, later)| match later.what {
                What::Override {
                    limit: of,
                    key: whose,
                    ..
                } if (of, whose) == (limit, key) => Some(later.from),
                What::Lost => Some(later.from),
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
                let cut = self
                    .outages
                    .iter()
                    .any(|one| meets(*one, (entry.to, asked.to)));
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
                        What::Override { limit, key, .. } | What::Reset { limit, key, .. } => {
                            touches(*limit, *key)
                        }
                        _ => true,
                    }
            });
            let soon = (before.from.saturating_sub(SOON), entry.to);
            let disturbed = disturbed
                || self.outages.iter().any(|one| meets(*one, soon))
                || self.clocks.iter().any(|(at, _)| meets((*at, *at), soon))
                || self.log.iter().any(|one| {
                    matches!(
                        one.what,
                        What::Policy(_)
                            | What::Up
                            | What::Down
                            | What::Override { .. }
                            | What::Lost
                    ) && meets((one.from, one.to), soon)
                        && one.from > 0
                });
            // Units that lie idle in leases come back in between.
            let leases = checks
                .iter()
                .any(|check| self.limits(check.limit).any(|(_, of)| of.leases));
            let unending = checks.iter().any(|check| {
                self.limits(check.limit)
                    .any(|(_, of)| of.blocked == Some(check.key))
|| self.log.iter().any(|one| {
                        matches!(one.what, What::Override { limit, key, grant: Some(Grant::Blocked), until: None, .. }
                            if (limit, key) == (check.limit, check.key))
                    })
            });
            if !disturbed && !leases && !unending {
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

    /// A look finds no more left than what was not certainly taken, by shares too: nothing is forgotten.
    pub(super) fn looked(&self, wrong: &mut Vec<Wrong>) {
        if !self.clocks.is_empty() || !self.losses.is_empty() {
            return;
        }
        for entry in self.log {
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
            let [check] = &checks[..] else { continue };
            let Some(limit) = &self.world.policies[0][check.limit] else {
                continue;
            };
            let is_same = self
                .world
                .policies
                .iter()
                .all(|policy| policy[check.limit].as_ref() == Some(limit));
            let [window] = &limit.windows[..] else {
                continue;
            };
            let reset = self.log.iter().any(|one| {
                matches!(one.what, What::Reset { limit, key, .. } if (limit, key) == (check.limit, check.key))
            });
            let span = (entry.from, entry.to);
            let cut = self.outages.iter().any(|one| meets(*one, span));
            let overridden = !self.overrides(check.limit, check.key).is_empty();
            let tokens = matches!(limit.algorithm, Algorithm::Token(_));
            if !is_same || reset || cut || overridden || tokens || limit.requests_up_to.is_some() {
                continue;
            }
            let bucket = Bucket {
                limit: check.limit,
                key: check.key,
                algorithm: limit.algorithm,
                per_ms: window.per_ms,
            };
            let per = window.per_ms * MS;
            let held = |one: &&Use| match limit.algorithm {
                Algorithm::Fixed | Algorithm::Day(_) => {
                    let of = |at| self.window_of(bucket, self.clock(at));
                    of(one.from) == of(entry.to) && of(one.to) == of(entry.from)
                }
                _ => one.from + per > entry.to,
            };
            let uses = self.uses(bucket);
            let certain = uses.iter().filter(|one| one.certain && one.to < entry.from);
            let taken: u64 = certain.filter(held).map(|one| one.units).sum();
            if *left > window.quota.saturating_sub(taken) {
                let what = format!(
                    "{check:?} has {left} left at {:.3} s, and {taken} of {} were taken",
                    secs(entry.to),
                    window.quota
                );
                wrong.push(Wrong {
                    kind: "forgotten",
                    what,
                });
                return;
            }
        }
    }
}
