//! What every store has to answer, written to be obviously right and nothing else: every admission is
//! kept, and every question scans them all. It shares no arithmetic with the engine.

use super::model_calendar::calendar_window;
use super::model_returns::Returns;
use sluicegate_engine::{
    Algorithm, Batch, Bucket, BucketSpec, Decision, Done, Held as OfHold, MAX_HELD, Outcome,
    Record, greatest_common_divisor,
};
use std::collections::HashMap;
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
struct Admission {
    /// When it counts as admitted: for a sliding window, rounded up to the precision.
    stamp: u64,
    units: u64,
}

/// One bucket's admissions (logs, fixed windows) or backlog (token buckets).
#[derive(Clone, Debug, Default)]
struct Held {
    admissions: Vec<Admission>,
    /// Token bucket: units times the window's length, of which `quota` drain each microsecond.
    backlog: u128,
    as_of: u64,
    /// The quota of the last decision that took something.
    quota: u64,
    /// Its burst: what is over it is a debt.
    burst: u64,
    /// The backlog as it would be if no change of policy had cut it.
    uncut: Option<Uncut>,
    /// What receipts may return, as long as nothing is cut and the quota stays.
    returns: Returns,
    /// Takes before this cannot be given back: the bucket was empty since, or the clock stepped.
    born: u64,
}

/// It drains by the fastest rate that has taken since the cut.
#[derive(Clone, Copy, Debug)]
struct Uncut {
    backlog: u128,
    quota: u64,
}

#[derive(Debug, Default)]
pub struct Model {
    buckets: HashMap<String, Held>,
}

impl Model {
    pub fn decide(&mut self, now: u64, batch: &Batch) -> Vec<Outcome> {
        let one = |decision| self.decide_one(now, batch, decision);
        batch.decisions.iter().map(one).collect()
    }

    fn decide_one(&mut self, now: u64, batch: &Batch, decision: &Decision) -> Outcome {
        let mut held = self.buckets.clone();
        let takes = decision.takes.iter();
        let takes = takes.map(|take| (&batch.buckets[take.bucket], take.cost));
        let takes: Vec<(&Bucket, u64)> = takes.collect();
        for (bucket, _) in &takes {
            let held = held.entry(bucket.key.clone()).or_default();
            held.heal(&bucket.spec, now);
            held.adopt_faster(&bucket.spec, now);
        }
        self.buckets = held.clone();
        let least = u64::from(decision.asks);
        let wait = |(bucket, cost): &(&Bucket, u64)| {
            held[&bucket.key].wait(&bucket.spec, now, least.max(*cost))
        };
        let waits: Vec<u64> = takes.iter().map(wait).collect();
        let longest = waits.iter().copied().max().unwrap_or(0);
        if longest == 0 && !decision.peek {
            for (bucket, cost) in &takes {
                let held = self.buckets.get_mut(&bucket.key).expect("entered above");
                if *cost > 0 {
                    held.take(&bucket.spec, now, *cost);
                } else if decision.asks {
                    held.adopt(&bucket.spec, now);
                }
            }
            for (bucket, _) in &takes {
                let own = |held: &OfHold| *held == OfHold::of(bucket);
                for hold in decision.holds.iter().filter(|hold| hold.of.iter().any(own)) {
                    let held = self.buckets.get_mut(&bucket.key).expect("entered above");
                    held.leave(&bucket.spec, now, hold.units);
                }
            }
        }
        let stands = takes.iter().map(|(bucket, _)| {
            let (held, spec) = (&self.buckets[&bucket.key], &bucket.spec);
            (held.remaining(spec, now), held.reset(spec, now))
        });
        let stands: Vec<(i64, u64)> = stands.collect();
        let decided_by = if longest > 0 {
            let last = (0..waits.len()).filter(|index| waits[*index] == longest);
            let most = |index: usize| takes[index].0.spec.most_at_once();
            last.min_by_key(|index| (stands[*index].0.max(0), most(*index), *index))
        } else {
            let key = |&(remaining, reset): &(i64, u64)| (remaining.max(0), u64::MAX - reset);
            let tightest = stands.iter().map(key).min();
            stands.iter().position(|stand| Some(key(stand)) == tightest)
        };
        let decided_by = decided_by.expect("a decision has takes");
        Outcome {
            admitted: longest == 0,
            decided_by,
            remaining: stands[decided_by].0.max(0).cast_unsigned(),
            over: stands[decided_by].0.min(0).unsigned_abs(),
            reset_us: stands[decided_by].1,
            retry_after_us: longest,
            ended: 0,
            at_us: now,
        }
    }

    pub fn give_back(&mut self, now: u64, bucket: &Bucket, cost: u64, at: u64) -> u64 {
        let held = self.buckets.entry(bucket.key.clone()).or_default();
        held.heal(&bucket.spec, now);
        match cost {
            0 => 0,
            _ => held.give_back(&bucket.spec, now, cost, at, None),
        }
    }

    /// Settles a receipt of so many units, taken then, by this quota.
    pub fn settle(
        &mut self,
        now: u64,
        bucket: &Bucket,
        (taken, at, quota): (u64, u64, u64),
        used: u64,
    ) -> Done {
        let spec = &bucket.spec;
        let held = self.buckets.entry(bucket.key.clone()).or_default();
        held.heal(spec, now);
        let unused = taken.saturating_sub(used);
        let returned = held.give_back(spec, now, unused, at, Some((taken, quota)));
        if used <= taken {
            return Done::Returned(returned);
        }
        let units = used - taken;
        Done::Added(self.write_back(now, bucket, &[Record { at_us: now, units }]))
    }

    pub fn write_back(&mut self, now: u64, bucket: &Bucket, records: &[Record]) -> u64 {
        let held = self.buckets.entry(bucket.key.clone()).or_default();
        held.heal(&bucket.spec, now);
        if let Algorithm::TokenBucket { .. } = bucket.spec.algorithm {
            return held.write_back_tokens(&bucket.spec, now, records);
        }
        let each = records.iter();
        each.map(|record| held.write_back(&bucket.spec, now, record))
            .sum()
    }

    pub fn reset(&mut self, key: &str) {
        self.buckets.remove(key);
    }
}

fn stamp(spec: &BucketSpec, now: u64) -> u64 {
    match spec.algorithm {
        Algorithm::SlidingWindow { precision_us, .. } => now.div_ceil(precision_us) * precision_us,
        _ => now,
    }
}

/// The latest stamp that is believed: units of a lease may be spent until the end of their step, so what a clock that stepped
/// back restamps gets the end of the next step.
fn latest_stamp(spec: &BucketSpec, now: u64) -> u64 {
    match spec.algorithm {
        Algorithm::SlidingWindow {
            precision_us,
            leased: true,
        } => (now.div_ceil(precision_us) + 1) * precision_us,
        _ => stamp(spec, now),
    }
}

fn is_fixed(spec: &BucketSpec) -> bool {
    matches!(
        spec.algorithm,
        Algorithm::FixedWindow | Algorithm::CalendarWindow(_)
    )
}

/// The fixed window that holds a time.
fn window(spec: &BucketSpec, time: u64) -> Range<u64> {
    match spec.algorithm {
        Algorithm::CalendarWindow(calendar) => calendar_window(calendar, time),
        _ => {
            let number = time / spec.window_us;
            number * spec.window_us..(number + 1) * spec.window_us
        }
    }
}

/// Whether an admission of `stamp` still counts.
fn counts(spec: &BucketSpec, stamp: u64, now: u64) -> bool {
    match spec.algorithm {
        Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
            window(spec, stamp) == window(spec, now)
        }
        _ => now < stamp + spec.window_us,
    }
}

impl Held {
    fn heal(&mut self, spec: &BucketSpec, now: u64) {
        let latest = latest_stamp(spec, now);
        match spec.algorithm {
            Algorithm::TokenBucket { .. } => {
                if self.as_of > now {
                    self.born = self.as_of + 1;
                    self.as_of = now;
                }
            }
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                let following = window(spec, window(spec, now).end);
                let far = |a: &Admission| a.stamp >= following.end;
                if self.admissions.iter().any(far) {
                    // Of any quota, since what was counted in this window is lost.
                    let units = MAX_HELD;
                    self.admissions = vec![Admission { stamp: now, units }];
                    self.born = now + 1;
                }
            }
            _ => {
                let newest = self.admissions.iter().map(|a| a.stamp).max().unwrap_or(0);
                if newest > latest {
                    for admission in &mut self.admissions {
                        admission.stamp = admission.stamp.min(latest);
                    }
                    self.forget(spec, now);
                    self.born = newest + 1;
                }
            }
        }
    }

    /// What has expired when something is written is gone for good.
    fn forget(&mut self, spec: &BucketSpec, now: u64) {
        self.admissions.retain(|a| counts(spec, a.stamp, now));
    }

    /// The clock stepped back over one edge of a fixed window: units of the window that follows.
    fn following(&self, spec: &BucketSpec, now: u64) -> u64 {
        if !is_fixed(spec) {
            return 0;
        }
        let following = window(spec, window(spec, now).end);
        self.units(|a| following.contains(&a.stamp))
    }

    fn used(&self, spec: &BucketSpec, now: u64) -> u64 {
        self.units(|a| counts(spec, a.stamp, now))
    }

    fn units(&self, of: impl Fn(&Admission) -> bool) -> u64 {
        let these = self.admissions.iter().filter(|a| of(a));
        these.map(|a| a.units).sum()
    }

    /// The larger of what is held with and without the cut, and by which quota it drains.
    fn most(&self) -> (u128, u64) {
        let uncut = self.uncut.filter(|uncut| uncut.backlog > self.backlog);
        uncut.map_or((self.backlog, self.quota), |uncut| {
            (uncut.backlog, uncut.quota)
        })
    }

    /// What a decision by `spec` finds stored. Counted by another quota it is rounded up to what that can count; a full bucket
    /// at most besides what is owed.
    fn stored(&self, spec: &BucketSpec) -> u128 {
        let burst = spec.most_at_once();
        let own = self.quota == spec.quota && (self.uncut.is_none() || burst <= self.burst);
        let uncut = self.uncut.filter(|uncut| uncut.quota == spec.quota);
        let all = match uncut {
            _ if own => self.backlog,
            Some(uncut) => return uncut.backlog,
            None => rounded(self.most().0, spec, spec.quota),
        };
        let fine = |units: u64| u128::from(units) * u128::from(spec.window_us);
        let owed = self.backlog.saturating_sub(fine(self.burst));
        all.min(fine(burst) + rounded(owed, spec, spec.quota))
    }

    fn backlog(&self, spec: &BucketSpec, now: u64) -> u128 {
        drained(self.stored(spec), spec.quota, now - self.as_of)
    }

    /// Takes for a decision by `spec`; without the cut everything drains by the fastest rate.
    fn take_tokens(&mut self, spec: &BucketSpec, now: u64, cost: u64) {
        let (backlog, taken) = (
            self.backlog(spec, now),
            u128::from(cost) * u128::from(spec.window_us),
        );
        let (most, quota) = self.most();
        let fastest = quota.max(spec.quota);
        let most = if fastest == quota {
            most
        } else {
            rounded(most, spec, fastest)
        };
        let most = drained(most, fastest, now - self.as_of);
        self.returns.cap(backlog);
        let is_own = self.quota == spec.quota;
        self.burst = spec.most_at_once();
        if backlog == 0 {
            self.born = now;
        }
        self.uncut = (most > backlog).then(|| Uncut {
            backlog: (most + taken).min(most_fine(spec, fastest)),
            quota: fastest,
        });
        if !is_own || self.uncut.is_some() {
            self.returns = Returns::default();
        }
        (self.backlog, self.quota, self.as_of) = (backlog + taken, spec.quota, now);
    }

    /// What is charged later counts by the quota that has admitted a request which takes nothing.
    fn adopt(&mut self, spec: &BucketSpec, now: u64) {
        let is_level = matches!(spec.algorithm, Algorithm::TokenBucket { .. });
        let (held, uncut) = self.held(now);
        if is_level && self.quota != spec.quota && held + uncut > 0 {
            self.take_tokens(spec, now, 0);
        }
    }

    /// A quota that is larger than those it is stored by drains from its first look on.
    fn adopt_faster(&mut self, spec: &BucketSpec, now: u64) {
        let (held, uncut) = self.held(now);
        if spec.quota > self.most().1 && held + uncut > 0 {
            self.hold((held, uncut), now);
            self.take_tokens(spec, now, 0);
        }
    }

    /// Leaves a receipt of what was taken now.
    fn leave(&mut self, spec: &BucketSpec, now: u64, units: u64) {
        let is_level = matches!(spec.algorithm, Algorithm::TokenBucket { .. });
        if is_level && self.uncut.is_none() {
            let taken = u128::from(units) * u128::from(spec.window_us);
            self.returns.push(now, self.backlog, taken);
        }
    }

    /// What is held by the rates that it is stored by, whatever the policy is now.
    fn held(&self, now: u64) -> (u128, u128) {
        let passed = now - self.as_of;
        let uncut = self
            .uncut
            .map(|uncut| drained(uncut.backlog, uncut.quota, passed));
        let backlog = drained(self.backlog, self.quota, passed);
        (backlog, uncut.unwrap_or(0))
    }

    /// Stores what is held, by the rates that it is stored by.
    fn hold(&mut self, (backlog, uncut): (u128, u128), now: u64) {
        (self.backlog, self.as_of) = (backlog, now);
        if let Some(cut) = &mut self.uncut {
            cut.backlog = uncut;
        }
        self.uncut = self.uncut.filter(|uncut| uncut.backlog > backlog);
    }

    /// How long until `cost` has room: 0, or the first moment at which something expires that makes room.
    fn wait(&self, spec: &BucketSpec, now: u64, cost: u64) -> u64 {
        if cost == 0 {
            return 0;
        }
        if let Algorithm::TokenBucket { burst } = spec.algorithm {
            let window = u128::from(spec.window_us);
            let wanted = self.backlog(spec, now) + u128::from(cost) * window;
            let excess = wanted.saturating_sub(u128::from(burst) * window);
            return us(excess.div_ceil(u128::from(spec.quota)));
        }
        let room =
            |at: u64| self.following(spec, at) == 0 && self.used(spec, at) + cost <= spec.quota;
        let mut moments: Vec<u64> = self.expiries(spec, now);
        if self.following(spec, now) > 0 {
            let edge = window(spec, now).end;
            moments.extend([edge, window(spec, edge).end]);
        }
        moments.push(now);
        moments.sort_unstable();
        let first = moments.into_iter().find(|at| room(*at));
        first.expect("an empty bucket has room for any cost allowed") - now
    }

    /// When each admission that still counts stops counting.
    fn expiries(&self, spec: &BucketSpec, now: u64) -> Vec<u64> {
        let live = self.admissions.iter();
        let live = live.filter(|a| a.units > 0 && counts(spec, a.stamp, now));
        live.map(|a| match spec.algorithm {
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => window(spec, a.stamp).end,
            _ => a.stamp + spec.window_us,
        })
        .collect()
    }

    /// What is left, below 0 if more is held; 0 where a count may be lost.
    fn remaining(&self, spec: &BucketSpec, now: u64) -> i64 {
        if let Algorithm::TokenBucket { burst } = spec.algorithm {
            let window = i128::from(spec.window_us);
            let whole = i128::from(burst) * window;
            let held = self.backlog(spec, now).cast_signed();
            return i64::try_from((whole - held).div_euclid(window)).expect("bounded");
        }
        if self.following(spec, now) > 0 {
            return 0;
        }
        let used = self.used(spec, now);
        let left = spec.quota.cast_signed() - used.cast_signed();
        if used < MAX_HELD { left } else { left.max(0) }
    }

    fn reset(&self, spec: &BucketSpec, now: u64) -> u64 {
        if let Algorithm::TokenBucket { .. } = spec.algorithm {
            return us(self.backlog(spec, now).div_ceil(u128::from(spec.quota)));
        }
        if self.following(spec, now) > 0 {
            return window(spec, window(spec, now).end).end - now;
        }
        let last = self.expiries(spec, now).into_iter().max();
        last.map_or(0, |last| last - now)
    }

    fn take(&mut self, spec: &BucketSpec, now: u64, cost: u64) {
        if let Algorithm::TokenBucket { .. } = spec.algorithm {
            return self.take_tokens(spec, now, cost);
        }
        self.forget(spec, now);
        if self.used(spec, now) == 0 {
            self.born = now;
        }
        // No later admission has an earlier stamp.
        let newest = self.admissions.iter().map(|a| a.stamp).max();
        let newest = newest.filter(|_| !is_fixed(spec)).unwrap_or(0);
        let stamp = stamp(spec, now).max(newest);
        self.admissions.push(Admission { stamp, units: cost });
    }

    /// As a take at its time, if that had been here, whatever the limit.
    fn write_back(&mut self, spec: &BucketSpec, now: u64, record: &Record) -> u64 {
        let at = record.at_us.min(now);
        let following = self.following(spec, now);
        if following > 0 {
            let same = window(spec, window(spec, now).end).contains(&record.at_us);
            let units = record.units.min(MAX_HELD - following);
            if same && units > 0 {
                let stamp = record.at_us;
                self.admissions.push(Admission { stamp, units });
            }
            return if same { units } else { 0 };
        }
        let used = self.used(spec, now);
        let units = record.units.min(MAX_HELD - used);
        let stamp = stamp(spec, at);
        if units == 0 || !counts(spec, stamp, now) {
            return 0;
        }
        self.forget(spec, now);
        if used == 0 {
            self.born = now;
        }
        self.admissions.push(Admission { stamp, units });
        units
    }

    /// By the rate that is stored, if the bucket holds something. What is empty drains a record from its time on (or from
    /// when it was empty); what is not drains what it holds, and a record only from before it began to hold something.
    fn write_back_tokens(&mut self, spec: &BucketSpec, now: u64, records: &[Record]) -> u64 {
        let window = u128::from(spec.window_us);
        let empty_in = |backlog: u128, quota: u64| us(backlog.div_ceil(u128::from(quota.max(1))));
        let uncut = self
            .uncut
            .map_or(0, |uncut| empty_in(uncut.backlog, uncut.quota));
        let mut emptied = match empty_in(self.backlog, self.quota).max(uncut) {
            0 => 0,
            empty_in => self.as_of + empty_in,
        };
        let (mut held, uncut) = self.held(now);
        let before = held;
        let is_empty = held == 0 && uncut == 0;
        let quota = if is_empty { spec.quota } else { self.quota };
        let limit = u128::from(quota);
        let most = most_fine(spec, quota).min(u128::from(MAX_HELD) * window);
        let mut recorded = 0;
        for record in records {
            let at = record.at_us.min(now);
            let fine = (most / window).min(u128::from(record.units)) * window;
            let idle = if held == 0 {
                let from = at.max(emptied);
                emptied = from + us(fine.div_ceil(limit));
                Some(from..now)
            } else {
                (at < self.born && self.born <= now).then_some(at..self.born)
            };
            let length = |idle: &Range<u64>| idle.end.saturating_sub(idle.start);
            let idle_us = idle.as_ref().map_or(0, length);
            let gain = fine.saturating_sub(u128::from(idle_us) * limit);
            let gain = gain.min(most.saturating_sub(held));
            if gain > 0 {
                if idle.is_some() {
                    self.born = at;
                }
                held += gain;
                recorded += us(gain.div_ceil(window));
            }
        }
        if recorded > 0 {
            self.returns.cap(before);
            self.quota = quota;
            if is_empty {
                self.burst = spec.most_at_once();
            }
            self.uncut = self.uncut.filter(|_| uncut > 0);
            let more = uncut + u128::from(recorded) * window;
            let quota = self.uncut.map_or(self.quota, |uncut| uncut.quota);
            self.hold((held, more.min(most_fine(spec, quota))), now);
        }
        recorded
    }

    /// Of a receipt are known the units that it stood for, and the quota that they were taken by.
    fn give_back(
        &mut self,
        spec: &BucketSpec,
        now: u64,
        cost: u64,
        at: u64,
        receipt: Option<(u64, u64)>,
    ) -> u64 {
        if at < self.born || at > now {
            return 0;
        }
        if let Algorithm::TokenBucket { .. } = spec.algorithm {
            let window = u128::from(spec.window_us);
            let (unused, taken) = (u128::from(cost) * window, receipt.map(|(taken, _)| taken));
            let taken = taken.map(|taken| u128::from(taken) * window);
            let all = taken.unwrap_or(unused);
            let back = |held: u128, quota: u64| {
                let passed = now - at;
                let left = drained(all, quota, passed);
                // Or what has drained by the quota of the taking, rounded up, if that is more.
                let at_first = receipt.map_or(0, |(_, first)| all - drained(all, first, passed));
                let left = left.min(all.saturating_sub(rounded(at_first, spec, quota)));
                unused.min(left).min(held)
            };
            let (held, uncut) = self.held(now);
            // What returns nothing changes nothing, so that a clock that steps back finds the receipts.
            if held == 0 && uncut == 0 {
                return 0;
            }
            self.returns.cap(held);
            let has_receipts = !self.returns.is_empty();
            let undrained = back(held, self.quota);
            let returned = self.returns.give(at, unused, taken, undrained);
            let of_uncut = self.uncut.map_or(0, |cut| back(uncut, cut.quota));
            self.returns.cap(held - returned);
            if returned + of_uncut > 0 || has_receipts {
                self.hold((held - returned, uncut - of_uncut), now);
            }
            return us(returned.div_ceil(window));
        }
        if !counts(spec, stamp(spec, at), now) {
            return 0;
        }
        let mut left = cost;
        for admission in &mut self.admissions {
            let same = match spec.algorithm {
                Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                    counts(spec, admission.stamp, now)
                }
                _ => admission.stamp == stamp(spec, at),
            };
            if same {
                let returned = admission.units.min(left);
                admission.units -= returned;
                left -= returned;
            }
        }
        if left < cost {
            self.forget(spec, now);
        }
        // What was returned whole was never there.
        self.admissions.retain(|admission| admission.units > 0);
        cost - left
    }
}

fn drained(backlog: u128, quota: u64, passed: u64) -> u128 {
    backlog.saturating_sub(u128::from(passed) * u128::from(quota))
}

/// Rounded up to what the rate of a quota can count, at most the most that it can.
fn rounded(backlog: u128, spec: &BucketSpec, quota: u64) -> u128 {
    let divisor = u128::from(greatest_common_divisor(quota, spec.window_us));
    backlog
        .next_multiple_of(divisor)
        .min(most_fine(spec, quota))
}

/// The most that the rate of a quota can count.
fn most_fine(spec: &BucketSpec, quota: u64) -> u128 {
    u128::from(greatest_common_divisor(quota, spec.window_us)) << 52
}

fn us(value: u128) -> u64 {
    u64::try_from(value).expect("fits")
}
