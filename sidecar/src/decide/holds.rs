//! The slots that this sidecar granted or renewed last, for operators: in bounded memory, without their keys. Pure: time comes as
//! an argument.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sluicegate_engine::SlotId;
use sluicegate_protocol::{ListedHold, MAX_LISTED_HOLDS, is_digits};

use crate::clock;
use crate::policy::{Limit, consumer_of};
use crate::telemetry::subject::Subject;

/// Most that are known; of more, only the metrics tell.
const MAX_HOLDS: usize = 100_000;
/// How long those are known that had to end because their stream is older than `longest`, unless they are freed.
const OUTLIVED_FOR_US: u64 = 86_400_000_000;
/// How long it is told that there were more.
const UNLISTED_FOR_US: u64 = 60_000_000;

/// Slots by their ids, the oldest first.
#[derive(Debug, Default)]
pub struct Holds {
    by_age: BTreeMap<(u64, SlotId), Hold>,
    /// Until when it is told that there are more.
    unlisted_until_us: u64,
}

#[derive(Debug)]
struct Hold {
    limit: Arc<Limit>,
    subject: Subject,
    consumer: Option<Box<str>>,
    /// The filter's root context.
    vm: Option<u128>,
    /// When they end unless they are renewed, by the monotonic clock.
    ends_us: u64,
    /// Whether they are older than `longest` by then.
    outlives: bool,
}

/// One moment by the monotonic clock, and by the wall clock, which says when slots were taken.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    now_us: u64,
    unix_us: u64,
}

/// What is asked for: all that match.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'w> {
    /// The limit's name.
    pub limit: Option<&'w str>,
    /// The digits of a key, or a consumer's name.
    pub subject: Option<&'w str>,
}

/// The slots of one limit.
#[derive(Clone, Debug, Serialize)]
pub struct OfLimit {
    /// How many are in use.
    pub in_use: u64,
    /// The oldest.
    pub oldest: ListedHold,
}

/// The root context that a filter's header names.
pub fn read_vm(text: &str) -> Option<u128> {
    let vm = u128::from_str_radix(text, 16).ok()?;
    is_digits(text, 32).then_some(vm)
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self {
            now_us: clock::now_us(),
            unix_us: clock::unix_us(),
        }
    }
}

impl Holds {
    /// Slots were granted or renewed. Of a limit that the policy does not have any more, only known ones are listed.
    pub fn note(
        &mut self,
        id: SlotId,
        limit: Option<&Arc<Limit>>,
        key: &str,
        vm: Option<u128>,
        at: Moment,
    ) {
        let name = (id.at_us(), id);
        if !self.by_age.contains_key(&name) {
            let Some(limit) = limit else { return };
            if self.by_age.len() >= MAX_HOLDS {
                self.unlisted_until_us = at.now_us.saturating_add(UNLISTED_FOR_US);
                return;
            }
            let hold = Hold {
                limit: Arc::clone(limit),
                subject: Subject::of(key),
                consumer: consumer_of(key).map(Into::into),
                vm: None,
                ends_us: 0,
                outlives: false,
            };
            self.by_age.insert(name, hold);
        }
        if let Some(hold) = self.by_age.get_mut(&name) {
            if let Some(limit) = limit.filter(|limit| !Arc::ptr_eq(limit, &hold.limit)) {
                hold.limit = Arc::clone(limit);
            }
            let lasts_us = hold.limit.expire_us().unwrap_or_else(|| id.lasts_us());
            let age_us = at.unix_us.saturating_sub(id.at_us());
            hold.vm = vm.or(hold.vm);
            hold.ends_us = at.now_us.saturating_add(lasts_us);
            hold.outlives = age_us.saturating_add(lasts_us) > hold.limit.longest_us;
        }
    }

    /// Slots were freed, or had ended.
    pub fn remove(&mut self, id: SlotId) {
        self.by_age.remove(&(id.at_us(), id));
    }

    /// Forgets those that have ended, but for a while not those that are older than `longest`: their streams may still run.
    pub fn forget_ended(&mut self, at: Moment) {
        let many = self.by_age.len() >= MAX_HOLDS;
        self.by_age.retain(|_, hold| {
            let outlived_us = if hold.outlives && !many {
                OUTLIVED_FOR_US
            } else {
                0
            };
            at.now_us < hold.ends_us.saturating_add(outlived_us)
        });
    }

    /// The oldest that match, and whether there are more.
    pub fn list(&self, wanted: Wanted<'_>, at: Moment) -> (Vec<ListedHold>, bool) {
        let mut matching = self.by_age.iter().filter(|((_, id), hold)| {
            let limit = wanted.limit.is_none_or(|limit| limit == hold.limit.name);
            limit && hold.is_listed(*id, at) && wanted.subject.is_none_or(|of| hold.is_of(of))
        });
        let listed = matching.by_ref().take(MAX_LISTED_HOLDS);
        let listed = listed.map(|((_, id), hold)| hold.listed(*id, at)).collect();
        let more = matching.next().is_some() || at.now_us < self.unlisted_until_us;
        (listed, more)
    }

    /// Those of each limit that has some.
    pub fn of_limits(&self, at: Moment) -> BTreeMap<String, OfLimit> {
        let mut limits: BTreeMap<String, OfLimit> = BTreeMap::new();
        for ((_, id), hold) in &self.by_age {
            if !hold.is_listed(*id, at) {
                continue;
            }
            let in_use = if hold.is_live(at) { id.units() } else { 0 };
            match limits.get_mut(&hold.limit.name) {
                Some(of_limit) => of_limit.in_use += in_use,
                None => {
                    let oldest = hold.listed(*id, at);
                    limits.insert(hold.limit.name.clone(), OfLimit { in_use, oldest });
                }
            }
        }
        limits
    }
}

impl Hold {
    const fn is_live(&self, at: Moment) -> bool {
        at.now_us < self.ends_us
    }

    fn is_outlived(&self, id: SlotId, at: Moment) -> bool {
        self.outlives && at.unix_us.saturating_sub(id.at_us()) > self.limit.longest_us
    }

    fn is_listed(&self, id: SlotId, at: Moment) -> bool {
        self.is_live(at) || self.is_outlived(id, at)
    }

    fn is_of(&self, subject: &str) -> bool {
        self.consumer.as_deref() == Some(subject) || Subject::read(subject) == Some(self.subject)
    }

    fn listed(&self, id: SlotId, at: Moment) -> ListedHold {
        let seconds = |us: u64| us / 1_000_000;
        ListedHold {
            limit: self.limit.name.clone(),
            subject: self.subject.to_string(),
            consumer: self.consumer.as_deref().map(str::to_owned),
            slots: id.units(),
            since_seconds: seconds(at.unix_us.saturating_sub(id.at_us())),
            ends_in_seconds: seconds(self.ends_us.saturating_sub(at.now_us)),
            granted_by: format!("{:08x}", id.by()),
            vm: self.vm.map(|vm| format!("{vm:032x}")),
            node: None,
            outlived: self.is_outlived(id, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const START: u64 = 1_790_000_000_000_000;

    /// So many seconds after the start; the clocks differ.
    fn at(seconds: u64) -> Moment {
        let unix_us = START + seconds * 1_000_000;
        Moment {
            now_us: seconds * 1_000_000 + 7,
            unix_us,
        }
    }

    fn id(seconds: u64, secret: u128) -> SlotId {
        SlotId::new(1, at(seconds).unix_us, 0xab, 30_000_000, secret)
    }

    /// A limit whose slots live 30 s, and are renewed for a minute.
    fn limit(name: &str) -> Arc<Limit> {
        let policy = format!(
            "limits: {{ {name}: {{ algorithm: concurrency, windows: [{{ quota: 9, per: 30s }}], longest: 1m }} }}"
        );
        let policy = Policy::parse(&policy).unwrap();
        Arc::clone(policy.limit(name).unwrap())
    }

    fn listed(holds: &Holds, wanted: Wanted<'_>, at: Moment) -> Vec<(String, u64, u64, bool)> {
        let (list, _) = holds.list(wanted, at);
        let of = |one: ListedHold| {
            let times = (one.since_seconds, one.ends_in_seconds);
            (one.limit, times.0, times.1, one.outlived)
        };
        list.into_iter().map(of).collect()
    }

    #[test]
    fn slots_are_listed_the_oldest_first_until_they_are_freed_or_end() {
        let (mut holds, all) = (Holds::default(), Wanted::default());
        let (l, m) = (limit("l"), limit("m"));
        holds.note(id(5, 1), Some(&m), "k", None, at(5));
        holds.note(id(0, 2), Some(&l), "k", Some(0xbeef), at(0));
        holds.note(id(0, 2), Some(&l), "k", None, at(10));
        let of = |limit: &str, since, ends, outlived| (limit.to_owned(), since, ends, outlived);
        let both = [of("l", 20, 20, false), of("m", 15, 15, false)];
        assert_eq!(listed(&holds, all, at(20)), both);
        let (list, more) = holds.list(all, at(20));
        assert_eq!(list[0].vm.as_deref(), Some(&*format!("{:032x}", 0xbeef)));
        assert_eq!((&*list[0].granted_by, more), ("000000ab", false));
        // Consumers are known by their names, others by their digits.
        let digits = Subject::of("k").to_string();
        for (limit, subject, count) in [
            (Some("l"), None, 1),
            (Some("l"), Some(&*digits), 1),
            (None, Some(&*digits), 2),
            (None, Some("k"), 0),
        ] {
            let wanted = Wanted { limit, subject };
            assert_eq!(listed(&holds, wanted, at(20)).len(), count, "{wanted:?}");
        }
        assert_eq!(listed(&holds, all, at(36)), [of("l", 36, 4, false)]);
        holds.remove(id(0, 2));
        assert!(listed(&holds, all, at(36)).is_empty());
        holds.forget_ended(at(36));
        assert!(holds.by_age.is_empty());
    }

    #[test]
    fn a_stream_that_is_older_than_longest_is_listed_until_it_is_freed_but_not_in_use() {
        let (mut holds, all, l) = (Holds::default(), Wanted::default(), limit("l"));
        for (secret, renewed) in [(1, vec![]), (2, vec![20, 40, 55]), (3, vec![20, 40, 65])] {
            holds.note(id(0, secret), Some(&l), "k", None, at(0));
            for renewed in renewed {
                holds.note(id(0, secret), Some(&l), "k", None, at(renewed));
            }
        }
        // Of the first, nobody knows anything any more.
        assert_eq!(listed(&holds, all, at(50)).len(), 2);
        holds.forget_ended(at(90));
        let outlived = |ends| ("l".to_owned(), 90, ends, true);
        assert_eq!(listed(&holds, all, at(90)), [outlived(0), outlived(5)]);
        assert_eq!(holds.of_limits(at(90))["l"].in_use, 1);
        assert_eq!(holds.of_limits(at(96))["l"].in_use, 0);
        holds.remove(id(0, 2));
        holds.forget_ended(at(65 + 30 + 86_400));
        assert!(holds.by_age.is_empty());
    }

    #[test]
    fn more_slots_than_are_known_are_told_of_and_renewals_of_unknown_limits_are_not_listed() {
        let (mut holds, l) = (Holds::default(), limit("l"));
        holds.note(id(0, 1), None, "k", None, at(0));
        assert!(holds.by_age.is_empty());
        for number in 0..MAX_HOLDS as u64 {
            let id = SlotId::new(1, START + number, 1, 30_000_000, 1);
            holds.note(id, Some(&l), "k", None, at(0));
        }
        let (list, more) = holds.list(Wanted::default(), at(0));
        assert_eq!((list.len(), more), (MAX_LISTED_HOLDS, true));
        let none = Wanted {
            limit: Some("m"),
            subject: None,
        };
        assert!(!holds.list(none, at(0)).1);
        holds.note(id(1, 9), Some(&l), "k", None, at(1));
        assert_eq!(holds.by_age.len(), MAX_HOLDS);
        assert!(holds.list(none, at(1)).1, "some are unknown");
        assert!(!holds.list(none, at(62)).1);
    }
}
