//! What receipts of a token bucket may return, for the model: the same groups as the engine's, by scanning them all. That they
//! never return too much is shown by `exact.rs`.

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    until: u64,
    most: u128,
    open: u128,
}

#[derive(Clone, Debug, Default)]
pub struct Returns {
    since: u64,
    groups: Vec<Group>,
}

impl Returns {
    pub fn cap(&mut self, level: u128) {
        let mut kept: Vec<Group> = Vec::new();
        for mut group in std::mem::take(&mut self.groups) {
            group.most = group.most.min(level);
            while let Some(same) = kept.pop_if(|before| before.most >= group.most) {
                group.open += same.open;
            }
            kept.push(group);
        }
        kept.retain(|_| level > 0);
        self.groups = kept;
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub fn push(&mut self, now: u64, level: u128, taken: u128) {
        if self.groups.is_empty() {
            self.since = now;
        }
        let count = self.groups.len();
        let is_same = self.groups.iter().any(|group| group.until == now);
        self.groups.push(Group {
            until: now,
            most: level,
            open: taken,
        });
        if is_same {
            self.join(count - 1);
        } else if count == 8 {
            let mut least = 0;
            for at in 1..count {
                let ((part, of), (least_part, least_of)) = (self.loss(at), self.loss(least));
                if part * least_of < least_part * of {
                    least = at;
                }
            }
            self.join(least);
        }
        self.cap(level);
    }

    fn before(&self, at: usize) -> u128 {
        if at == 0 { 0 } else { self.groups[at - 1].most }
    }

    fn missing(&self, at: usize) -> u128 {
        (self.before(at) + self.groups[at].open).saturating_sub(self.groups[at].most)
    }

    /// As a fraction.
    fn loss(&self, at: usize) -> (u128, u128) {
        let lost = self.missing(at);
        let (part, of) = if lost == 0 {
            (0, 1)
        } else if lost <= self.before(at) {
            (lost + self.missing(at - 1), self.groups[at - 1].open)
        } else {
            let next = self.groups[at + 1];
            (next.most - self.groups[at].most, next.open)
        };
        (part, of.max(1))
    }

    fn join(&mut self, at: usize) {
        let missing = self.missing(at);
        if missing > self.before(at) {
            self.groups[at + 1].most = self.groups[at].most;
        } else if at > 0 {
            self.groups[at - 1].most -= missing;
        }
        self.groups[at + 1].open += self.groups[at].open;
        self.groups.remove(at);
    }

    /// What comes back of `unused` units of a receipt that stood for `taken` (none: units that are of no receipt).
    pub fn give(&mut self, at: u64, unused: u128, taken: Option<u128>, undrained: u128) -> u128 {
        let Some(index) = self.groups.iter().position(|group| at <= group.until) else {
            return undrained;
        };
        let most = self.groups[index].most;
        let returned = match taken.filter(|_| at >= self.since) {
            Some(taken) => {
                let open = &mut self.groups[index].open;
                *open = open.saturating_sub(taken);
                unused.min(most)
            }
            None => undrained.min(most),
        };
        for group in &mut self.groups[index..] {
            group.most -= returned;
        }
        returned
    }
}
