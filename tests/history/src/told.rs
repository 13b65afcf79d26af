//! What was said is so: a block blocks, who comes back when Retry-After says is admitted, and every request has a verdict.

use crate::bounds::{BACK, CALLS, Judge, MS, SOON, Time, meets};
use crate::record::{By, Check, Entry, Grant, Link, Request, Said, What};
use crate::report::{Report, Wrong};
use crate::slots::has_slots;

/// A filter forgets a sidecar that gave none of so many answers, and takes rules that it lacks.
const FORGOTTEN: usize = 16;

/// How long a sidecar decides by a policy that is not in force any more, for whoever asks; and longer than idle workers need to hear
/// of a sidecar that has started.
const KEPT: u64 = 60_000 * MS;

/// More checks than a slow link carries in the store's timeout: a call has a bounded weight, and one is under way at a time.
const TOO_MANY: usize = 1_000;

impl Judge<'_> {
    /// Whatever is asked when all faults are healed has a verdict.
    pub(crate) fn unhealed(&self, report: &mut Report) {
        let log = self.history.log.iter();
        for entry in log.filter(|one| one.from >= self.history.healed) {
            if let Some(request) = entry.request()
                && request.said == Said::Unknown
            {
                report.add(request.first(), entry.when(), Wrong::Unhealed);
            }
        }
    }

    /// Whether the sidecar of an entry ran then.
    fn is_up(&self, entry: &Entry) -> bool {
        let mut of = self.changes.iter().rev().filter(|one| {
            let tells = matches!(one.what, What::Up | What::Down);
            tells && one.sidecar == entry.sidecar && one.from <= entry.from
        });
        of.next().is_some_and(|one| matches!(one.what, What::Up))
    }

    /// Until when a sidecar had a policy with a limit, the last one before `at`; 0 if it had none.
    fn known_until(&self, sidecar: usize, limit: usize, at: u64) -> u64 {
        let has =
            |version: usize| matches!(self.history.policies[version].get(limit), Some(Some(_)));
        let spans = self.policies[sidecar].iter();
        let having = spans.filter(|span| span.0 <= at && has(span.2));
        having.map(|span| span.1).max().unwrap_or(0)
    }

    /// Whether a sidecar gave none of [`FORGOTTEN`] answers in a row.
    fn is_forgotten(&self, sidecar: usize, (from, to): Time) -> bool {
        let log = self.history.log.iter();
        let asked = log.filter(|one| one.request().is_some() && one.from >= from && one.from < to);
        let asked: Vec<_> = asked.map(|one| one.sidecar == sidecar).collect();
        let mut runs = asked.split(|is_it| *is_it);
        runs.any(|others| others.len() >= FORGOTTEN)
    }

    /// Whatever the rules of a fleet's filter ask for is decided while sidecars take another policy, except as
    /// `docs/upgrades.md` says.
    pub(crate) fn unmetered(&self, report: &mut Report) {
        for entry in &self.changes {
            let What::Unmetered { limit } = entry.what else {
                continue;
            };
            let span = (entry.from.saturating_sub(CALLS), entry.to);
            let mut limits = self.history.policies.iter().flatten().flatten();
            let leases = limits.any(|limit| limit.lease_ms.is_some());
            let mut disturbed = self.changes.iter().filter(|one| match one.what {
                What::Clock(_) | What::Down => meets((one.from, one.to), span),
                // A change ends leases of which a request has units while it waits for the verdict on another limit. After one of
                // overrides, decisions wait until these have been read again: on a slow link for too long.
                What::Policy(_) => leases && meets((one.from, one.to + BACK), span),
                What::Override { .. } => {
                    let is_slow = self.is_slow(entry.sidecar, entry.to);
                    (leases || is_slow) && meets((one.from, one.to + BACK), span)
                }
                // Until it knows the overrides; and a new VM all sidecars, which may have different rules.
                What::Envoy | What::Up => meets((one.from, one.to + BACK), span),
                _ => false,
            });
            // A sidecar that has started again may never have had the earlier files, if it has no folder for them, or a full one,
            // or they were there while it was not: what one of the policies lacks it does not know.
            let policies = &self.history.policies;
            let everywhere = policies
                .iter()
                .all(|policy| policy.get(limit).is_none_or(Option::is_some));
            let mut before = self.changes.iter().filter(|one| one.from <= entry.to);
            let may_have_lost = before.any(|one| match one.what {
                What::Down => !self.history.keeps_state,
                What::StateFull(full) => full,
                What::Policy(_) => !self.is_up(one),
                _ => false,
            });
            // Sidecars may have different files. An Envoy that starts meanwhile may find no rules by which all of them decide. And one
            // whose filter has taken those of another sidecar while this one was away returns to the earlier ones when all of its
            // workers have heard of it.
            let known_until = self.known_until(entry.sidecar, limit, entry.from);
            let lacks = known_until == 0 || known_until.saturating_add(KEPT) <= entry.from;
            let mut starts = self.changes.iter().filter(|one| {
                let since = match one.what {
                    What::Envoy => known_until,
                    What::Up if one.from > 0 => entry.from.saturating_sub(KEPT),
                    _ => return false,
                };
                (since..=entry.to).contains(&one.from)
            });
            let forgotten = || self.is_forgotten(entry.sidecar, (known_until, entry.from));
            let apart = lacks && (starts.next().is_some() || forgotten());
            let replaced = !everywhere && (may_have_lost || apart);
            let is_calm = !replaced && !self.cut(span) && disturbed.next().is_none();
            if is_calm && self.checks_asked(entry.sidecar, span) < TOO_MANY {
                report.add((limit, 0), (entry.from, entry.to), Wrong::Unmetered);
                return;
            }
        }
    }

    /// Whether a sidecar's link to the store was slow then.
    fn is_slow(&self, sidecar: usize, at: u64) -> bool {
        let mut links = self.changes.iter().rev().filter_map(|one| match &one.what {
            What::Link(link) if one.sidecar == sidecar && one.from <= at => Some(link),
            _ => None,
        });
        matches!(links.next(), Some(Link::Slow(..)))
    }

    /// The checks that a sidecar was asked for in a span.
    fn checks_asked(&self, sidecar: usize, span: Time) -> usize {
        let log = self.history.log.iter();
        let own = log.filter(|one| one.sidecar == sidecar && meets(one.when(), span));
        let requests = own.filter_map(Entry::request);
        requests.map(|request| request.checks.len()).sum()
    }

    /// A key that is blocked admits nothing.
    pub(crate) fn blocked(&self, report: &mut Report) {
        // What the store loses, sidecars know that go on.
        let mut changes = self.changes.iter();
        let restarts = changes.any(|one| matches!(one.what, What::Down));
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
            let others = self.changes.iter().enumerate();
            let others = others.filter(|(other, later)| *other != number && later.to >= entry.from);
            let ends = others.filter_map(|(_, later)| match later.what {
                What::Override {
                    limit: of,
                    key: whose,
                    ..
                } if (of, whose) == (limit, key) => Some(later.from),
                What::Lost | What::OverridesLost if restarts => Some(later.from),
                _ => None,
            });
            // An end by a clock that steps is not known.
            let known = until.map_or(
                u64::MAX,
                |until| if self.clocks.is_empty() { until } else { 0 },
            );
            let until = ends.min().unwrap_or(u64::MAX).min(known);
            let admitted = self.history.log.iter().find(|asked| {
                let admits = |one: &Request| one.is_admitted() && one.is_of(limit, key);
                asked.request().is_some_and(admits)
                    && asked.from > entry.to + SOON
                    && asked.to < until
                    && !self.cut((entry.to, asked.to))
            });
            if let Some(asked) = admitted {
                report.add((limit, key), asked.when(), Wrong::Blocked);
                return;
            }
        }
    }

    /// Who asks again when Retry-After says, with nobody else there and nothing changed, is admitted.
    pub(crate) fn again(&self, report: &mut Report) {
        for (number, entry) in self.history.log.iter().enumerate() {
            let again = |one: &&Request| one.again && one.is_denied();
            let Some(request) = entry.request().filter(again) else {
                continue;
            };
            // The denial before it, by the same sidecar for the same.
            let mut earlier = self.history.log[..number].iter().rev();
            let before = earlier.find_map(|one| {
                let of = one.request()?;
                let Said::Denied { retry_ms } = of.said else {
                    return None;
                };
                let due_us = one.to + retry_ms? * MS;
                let is_it =
                    one.sidecar == entry.sidecar && !of.again && of.checks == request.checks;
                let is_due = (due_us..=due_us + 5 * MS).contains(&entry.from);
                (is_it && is_due).then_some((one, of.by))
            });
            let Some((before, by)) = before else { continue };
            // A cached denial was made up to a second earlier.
            let span = (before.from.saturating_sub(SOON), entry.to);
            // A fleet's filter has cached denials by all of its sidecars, which may have different policies.
            let excused = request.checks.iter().any(|check| {
                // Units that lie idle in leases come back in between.
                // When a slot is free nobody knows.
                self.longest_lease(check.limit) > 0
                    || self.limits(check.limit).any(|(_, of)| has_slots(of))
                    || self.promises_nothing(check, before.to, entry.from)
                    || [by, request.by].contains(&By::Cache)
                        && self.is_disputed(check.limit, before.from)
            });
            if !excused && !self.cut(span) && !self.is_disturbed(entry, request, span) {
                report.add(request.first(), (before.from, entry.to), Wrong::DeniedAgain);
                return;
            }
        }
    }

    /// Whether something else in a span may have taken what an entry asks for.
    fn is_disturbed(&self, entry: &Entry, request: &Request, span: Time) -> bool {
        self.history.log.iter().any(|one| {
            !std::ptr::eq(one, entry)
                && meets(one.when(), span)
                && match &one.what {
                    What::Asked(other) => {
                        other.may_take()
                            && other
                                .checks
                                .iter()
                                .any(|one| request.is_of(one.limit, one.key))
                    }
                    What::Reset { limit, key, .. } | What::Override { limit, key, .. } => {
                        request.is_of(*limit, *key)
                    }
                    _ => true,
                }
        })
    }

    /// Whether sidecars have different policies on a limit.
    fn is_disputed(&self, limit: usize, at: u64) -> bool {
        let versions = (0..self.history.sidecars).map(|sidecar| self.version(sidecar, at));
        let mut limits = versions.map(|version| &self.history.policies[version][limit]);
        let first = limits.next();
        limits.any(|other| Some(other) != first)
    }

    /// A block without an end promises nothing: its time is that of the longest window, after what hides the block.
    fn promises_nothing(&self, check: &Check, denied: u64, promised: u64) -> bool {
        let mut earlier = self.changes.iter().rev().filter(|one| one.from <= denied);
        let last = earlier.find_map(|one| match one.what {
            What::Lost | What::OverridesLost => Some(None),
            What::Override {
                limit,
                key,
                until,
                done: true,
                ..
            } if check.is_of(limit, key) => Some(until),
            _ => None,
        });
        // An end by a clock that steps is not known.
        let known = |until: &u64| *until >= denied && self.clocks.is_empty();
        let hidden_until = last.flatten().filter(known);
        let ends = hidden_until.map_or(denied.saturating_sub(SOON), |until| until - 500 * MS);
        let mut windows = self.limits(check.limit).flat_map(|(_, of)| &of.windows);
        let is_blocked = self.limits(check.limit).any(|(_, of)| of.blocked == Some(check.key))
            || self.changes.iter().any(|one| {
                matches!(one.what, What::Override { limit, key, grant: Some(Grant::Blocked), until: None, .. }
                    if check.is_of(limit, key))
            });
        is_blocked && windows.any(|window| promised >= ends + window.per_ms * MS)
    }
}
