//! Units that were granted in advance: a sidecar's leases of a key, or the parts of leases that a filter was lent.

/// Units that may be spent for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant<T> {
    /// How many units.
    pub units: u64,
    /// They must be spent before this time.
    pub ends_us: u64,
    /// Units that were left for others.
    pub remaining: u64,
    /// What the owner needs to account for them.
    pub tag: T,
}

/// Units that were taken. `remaining`: what is left of their grant, and for others.
pub type Taken<'a, T> = Grant<&'a T>;

/// A grant, and what is left of it.
#[derive(Debug)]
pub struct Held<T> {
    /// The grant.
    pub grant: Grant<T>,
    /// Units that are neither spent nor taken. Those that are put back are added here.
    pub left: u64,
}

/// Grants, in the order in which they end. Times are microseconds of the owner's clock, which must not step.
#[derive(Debug)]
pub struct Ledger<T>(Vec<Held<T>>);

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Ledger<T> {
    /// Adds a grant.
    pub fn add(&mut self, grant: Grant<T>) {
        let end = |one: &Held<T>| one.grant.ends_us <= grant.ends_us;
        let (index, left) = (self.0.partition_point(end), grant.units);
        self.0.insert(index, Held { grant, left });
    }

    /// Takes units, all from one grant that lasts for more than `stay_us`.
    pub fn take(&mut self, units: u64, now_us: u64, stay_us: u64) -> Option<Taken<'_, T>> {
        let until_us = now_us.saturating_add(stay_us);
        let mut all = self.0.iter_mut();
        let first = all.find(|one| one.left >= units && until_us < one.grant.ends_us)?;
        Some(first.take(units))
    }

    /// The grant with this tag.
    pub fn of(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut Held<T>> {
        self.0.iter_mut().find(|one| is_it(&one.grant.tag))
    }

    /// Units that can be taken.
    #[must_use]
    pub fn left(&self, now_us: u64) -> u64 {
        let live = self.0.iter().filter(|one| one.is_live(now_us));
        live.map(|one| one.left).sum()
    }

    /// Removes grants, as far as they are asked for.
    pub fn end(&mut self, ends: impl Fn(&Held<T>) -> bool) -> impl Iterator<Item = Held<T>> {
        self.0.extract_if(.., move |one| ends(one))
    }

    /// Removes all grants but these.
    pub fn retain(&mut self, stays: impl Fn(&Held<T>) -> bool) {
        self.0.retain(stays);
    }

    /// All grants.
    #[must_use]
    pub fn all(&self) -> &[Held<T>] {
        &self.0
    }

    /// All grants, to change what is left of them. One may also be made to end sooner, if all are.
    pub fn all_mut(&mut self) -> &mut [Held<T>] {
        &mut self.0
    }
}

impl<T> Held<T> {
    /// Whether there are units to take.
    #[must_use]
    pub const fn is_live(&self, now_us: u64) -> bool {
        self.left > 0 && now_us < self.grant.ends_us
    }

    /// Takes units, of which it must have enough.
    pub fn take(&mut self, units: u64) -> Taken<'_, T> {
        self.left -= units;
        Grant {
            units,
            ends_us: self.grant.ends_us,
            remaining: self.grant.remaining.saturating_add(self.left),
            tag: &self.grant.tag,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants of 10 units, by tag and end.
    fn ledger(grants: &[(char, u64)]) -> Ledger<char> {
        let mut ledger = Ledger::default();
        for (tag, ends_us) in grants.iter().copied() {
            ledger.add(Grant {
                units: 10,
                ends_us,
                remaining: 500,
                tag,
            });
        }
        ledger
    }

    #[test]
    fn units_are_spent_until_the_end_and_not_a_microsecond_later() {
        let mut ledger = ledger(&[('a', 50)]);
        let taken = ledger.take(4, 49, 0).unwrap();
        assert_eq!((taken.units, taken.remaining, taken.ends_us), (4, 506, 50));
        assert!(
            ledger.take(1, 49, 1).is_none(),
            "it must last a little longer"
        );
        assert!(ledger.take(1, 50, 0).is_none());
        assert_eq!((ledger.left(49), ledger.left(50)), (6, 0));
    }

    #[test]
    fn the_first_to_end_is_spent_first_and_a_cost_is_not_split() {
        let mut ledger = ledger(&[('b', 90), ('a', 80)]);
        assert!(ledger.take(11, 1, 0).is_none());
        let order = [7, 7, 3, 3].map(|units| *ledger.take(units, 1, 0).unwrap().tag);
        assert_eq!(order, ['a', 'b', 'a', 'b']);
        assert!(ledger.take(1, 1, 0).is_none(), "an empty one says nothing");
    }

    #[test]
    fn what_is_put_back_can_be_spent_until_its_grant_is_over() {
        let mut ledger = ledger(&[('a', 50), ('b', 60)]);
        ledger.take(10, 1, 0).unwrap();
        ledger.of(|tag| *tag == 'a').unwrap().left += 10;
        assert_eq!(ledger.take(10, 1, 0).unwrap().tag, &'a');
        let ended: Vec<_> = ledger.end(|one| one.grant.ends_us <= 50).collect();
        assert_eq!(
            (ended.len(), ended[0].left, ended[0].grant.tag),
            (1, 0, 'a')
        );
        assert!(
            ledger.of(|tag| *tag == 'a').is_none(),
            "to be returned, too"
        );
        assert_eq!((ledger.all().len(), ledger.left(50)), (1, 10));
    }
}
