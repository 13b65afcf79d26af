//! What receipts of a token bucket may return.
//!
//! Had a taking cost less, the level would have been lower since, but never below zero: what would have drained while it was
//! zero does not come back. So a taking returns at most the least level since; and takings before a moment return, together, at
//! most the level of that moment. A bucket keeps that bound for groups of takings that follow each other, and joins the two
//! where this loses least when there are too many.

use super::TokenRate;

/// Most groups of a bucket: 1,000 takings that fill it one after the other still return all that they can.
const MOST_GROUPS: usize = 8;

/// Takings that can be settled, from one time to another. All units are fine ones, by the rate that is stored.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// The time of the last of them.
    until_us: u64,
    /// What they and the groups before return at most.
    most: u64,
    /// What has been taken and is not settled: they return no more in any case.
    open: u64,
}

/// What takings with receipts return, as long as the bucket is not empty and its rate is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Returns {
    /// Takings before this are in no group.
    since_us: u64,
    /// Oldest first; the later, the more they return.
    groups: Vec<Group>,
}

impl Returns {
    /// The level was so low.
    pub fn cap(&mut self, level: u64) {
        let mut kept: Vec<Group> = Vec::with_capacity(self.groups.len());
        for mut group in std::mem::take(&mut self.groups) {
            group.most = group.most.min(level);
            // Joining may have lowered one below several before it.
            while let Some(before) = kept.pop_if(|before| before.most >= group.most) {
                group.open = sum(group.open, before.open);
            }
            kept.push(group);
        }
        self.groups = kept;
        if level == 0 {
            self.groups = Vec::new();
        }
    }

    /// A taking now, after which the level is so high.
    pub fn push(&mut self, now_us: u64, level: u64, taken: u64) {
        if self.groups.is_empty() {
            self.since_us = now_us;
        }
        let same = self
            .groups
            .last()
            .is_some_and(|last| last.until_us == now_us);
        self.groups.push(Group {
            until_us: now_us,
            most: level,
            open: taken,
        });
        let earlier = 0..self.groups.len().saturating_sub(1);
        let join = match same {
            true => earlier.last(),
            false if self.groups.len() > MOST_GROUPS => {
                let least =
                    |one: &usize, other: &usize| self.loss(*one).total_cmp(&self.loss(*other));
                earlier.min_by(least)
            }
            false => None,
        };
        if let Some(at) = join {
            self.join_next(at);
            self.cap(level);
        }
    }

    fn get(&self, at: Option<usize>) -> Group {
        let group = at.and_then(|at| self.groups.get(at));
        group.copied().unwrap_or_default()
    }

    /// How much less a group and those before it return at most than all that is open in it and that those return.
    fn missing(&self, at: usize) -> u64 {
        let (group, before) = (self.get(Some(at)), self.get(at.checked_sub(1)));
        sum(before.most, group.open).saturating_sub(group.most)
    }

    /// If a group is joined with the next, the part of what is open that can then not be returned any more: of the group before
    /// it, or else of the next.
    fn loss(&self, at: usize) -> f64 {
        let (lost, before) = (self.missing(at), at.checked_sub(1));
        let (part, of) = match before.map(|at| (at, self.get(before))) {
            _ if lost == 0 => return 0.0,
            Some((at, before)) if lost <= before.most => (lost + self.missing(at), before),
            _ => {
                let next = self.get(at.checked_add(1));
                (next.most - self.get(Some(at)).most, next)
            }
        };
        part as f64 / of.open.max(1) as f64
    }

    /// Joins a group with the next. What bounds the first of them alone is left out where it follows from what bounds the one
    /// before it: that is lowered until it does. If it cannot be, both have the first one's.
    fn join_next(&mut self, at: usize) {
        let (lost, before) = (self.missing(at), self.get(at.checked_sub(1)));
        let group = self.groups.remove(at);
        if let Some(next) = self.groups.get_mut(at) {
            next.open = sum(next.open, group.open);
            if lost > before.most {
                next.most = group.most;
            }
        }
        let one_before = at.checked_sub(1).and_then(|at| self.groups.get_mut(at));
        if let Some(before) = one_before.filter(|before| lost <= before.most) {
            before.most -= lost;
        }
    }

    /// Returns up to `fine` units of a taking, of which `ends` are settled with this. `undrained` is what it returns if it is in
    /// no group. None if there are no groups.
    pub fn give(&mut self, at_us: u64, fine: u64, ends: u64, undrained: u64) -> Option<u64> {
        self.groups.last()?;
        let of = self.groups.iter().position(|one| one.until_us >= at_us);
        let Some((at, group)) = of.and_then(|at| Some((at, self.groups.get_mut(at)?))) else {
            return Some(undrained);
        };
        let mut returned = undrained.min(group.most);
        if ends > 0 && at_us >= self.since_us {
            returned = fine.min(group.most);
            if group.open < TokenRate::MAX_BACKLOG {
                group.open = group.open.saturating_sub(ends);
            }
        }
        for group in self.groups.iter_mut().skip(at) {
            group.most -= returned;
        }
        Some(returned)
    }

    pub fn heap_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
    }
}

/// As far as it can be counted: what is more is never settled.
fn sum(one: u64, other: u64) -> u64 {
    one.saturating_add(other).min(TokenRate::MAX_BACKLOG)
}
