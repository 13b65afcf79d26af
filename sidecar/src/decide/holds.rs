//! The slots that this sidecar granted or renewed last, for operators: in bounded memory, without their keys. Pure: time comes as
//! an argument, in microseconds since 1970, as slots have it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::Serialize;
use sluicegate_engine::SlotId;
use sluicegate_protocol::{ListedHold, MAX_LISTED_HOLDS, is_digits};

use crate::policy::{Limit, consumer_of};
use crate::telemetry::subject::Subject;

/// Most that are known; of more, only the metrics tell.
const MAX_HOLDS: usize = 100_000;
/// How long those are known that had to end because their stream is older than `longest`, unless they are freed.
const OUTLIVED_FOR_US: u64 = 86_400_000_000;
/// How late a filter's sign of a stream may be, which is due after a third of the time that its slots live.
const SIGN_LATE_US: u64 = 1_000_000;
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
    /// When they were granted or renewed here.
    told_us: u64,
    /// How long they live from then on.
    lasts_us: u64,
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

impl Holds {
    /// Slots were granted or renewed. Of a limit that the policy does not have any more, only known ones are listed.
    pub fn note(
        &mut self,
        id: SlotId,
        limit: Option<&Arc<Limit>>,
        key: &str,
        vm: Option<u128>,
        now_us: u64,
    ) {
        let is_full = self.by_age.len() >= MAX_HOLDS;
        let hold = match (self.by_age.entry((id.at_us(), id)), limit) {
            (Entry::Occupied(known), _) => known.into_mut(),
            (Entry::Vacant(new), Some(limit)) if !is_full => new.insert(Hold {
                limit: Arc::clone(limit),
                subject: Subject::of(key),
                consumer: consumer_of(key).map(Into::into),
                vm,
                told_us: 0,
                lasts_us: 0,
            }),
            _ => {
                self.unlisted_until_us = now_us.saturating_add(UNLISTED_FOR_US);
                return;
            }
        };
        let lasts_us = limit.and_then(|limit| limit.expire_us());
        hold.told_us = now_us;
        hold.lasts_us = lasts_us.unwrap_or_else(|| id.lasts_us());
        hold.vm = vm.or(hold.vm);
    }

    /// Slots were freed, or had ended.
    pub fn remove(&mut self, id: SlotId) {
        self.by_age.remove(&(id.at_us(), id));
    }

    /// Forgets those that have ended, but for a while not those that are older than `longest`: their streams may still run.
    pub fn forget_ended(&mut self, now_us: u64) {
        let listed = |id: SlotId, hold: &Hold| {
            let forgotten_us = hold.ends_us().saturating_add(OUTLIVED_FOR_US);
            hold.is_listed(id, now_us) && now_us < forgotten_us
        };
        self.by_age.retain(|(_, id), hold| listed(*id, hold));
    }

    /// The oldest that match, and whether there are more. `subject`: the digits of a key, or a consumer's name.
    pub fn list(
        &self,
        limit: Option<&str>,
        subject: Option<&str>,
        now_us: u64,
    ) -> (Vec<ListedHold>, bool) {
        let digits = subject.and_then(Subject::read);
        let mut matching = self.listed(now_us).filter(|(_, hold)| {
            limit.is_none_or(|limit| limit == hold.limit.name)
                && (subject.is_none()
                    || subject == hold.consumer.as_deref()
                    || digits == Some(hold.subject))
        });
        let listed = matching.by_ref().take(MAX_LISTED_HOLDS);
        let listed = listed.map(|(id, hold)| hold.told(id, now_us)).collect();
        let more = matching.next().is_some() || now_us < self.unlisted_until_us;
        (listed, more)
    }

    /// Those of each limit that has some.
    pub fn of_limits(&self, now_us: u64) -> BTreeMap<String, OfLimit> {
        let mut limits = BTreeMap::new();
        for (id, hold) in self.listed(now_us) {
            let is_in_use = now_us < hold.in_use_until_us();
            let in_use = if is_in_use { id.units() } else { 0 };
            match limits.get_mut(&hold.limit.name) {
                Some(OfLimit { in_use: all, .. }) => *all += in_use,
                None => {
                    let oldest = hold.told(id, now_us);
                    limits.insert(hold.limit.name.clone(), OfLimit { in_use, oldest });
                }
            }
        }
        limits
    }

    fn listed(&self, now_us: u64) -> impl Iterator<Item = (SlotId, &Hold)> {
        let all = self.by_age.iter().map(|((_, id), hold)| (*id, hold));
        all.filter(move |(id, hold)| hold.is_listed(*id, now_us))
    }
}

impl Hold {
    /// When they end unless they are renewed.
    const fn ends_us(&self) -> u64 {
        self.told_us.saturating_add(self.lasts_us)
    }

    /// Until when they are taken for in use. A filter's next sign that does not come here went to another sidecar, which knows how
    /// long they live; programs say when they like.
    fn in_use_until_us(&self) -> u64 {
        let sign_us = self.told_us.saturating_add(self.lasts_us / 3);
        let sign_us = self.vm.map(|_| sign_us.saturating_add(SIGN_LATE_US));
        self.ends_us().min(sign_us.unwrap_or(u64::MAX))
    }

    /// Whether they are older than `longest`, and were renewed until then.
    fn is_outlived(&self, id: SlotId, now_us: u64) -> bool {
        let longest_us = self.limit.expire_us().map(|_| self.limit.longest_us);
        // The policy may count no slots of it any more.
        let until_us = longest_us.map(|longest_us| id.at_us().saturating_add(longest_us));
        until_us.is_some_and(|until_us| until_us < now_us.min(self.in_use_until_us()))
    }

    fn is_listed(&self, id: SlotId, now_us: u64) -> bool {
        now_us < self.in_use_until_us() || self.is_outlived(id, now_us)
    }

    fn told(&self, id: SlotId, now_us: u64) -> ListedHold {
        let seconds = |until_us: u64, from_us| until_us.saturating_sub(from_us) / 1_000_000;
        ListedHold {
            limit: self.limit.name.clone(),
            subject: self.subject.to_string(),
            consumer: self.consumer.as_deref().map(str::to_owned),
            slots: id.units(),
            since_seconds: seconds(now_us, id.at_us()),
            ends_in_seconds: seconds(self.ends_us(), now_us),
            granted_by: format!("{:08x}", id.by()),
            vm: self.vm.map(|vm| format!("{vm:032x}")),
            node: None,
            outlived: self.is_outlived(id, now_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const START: u64 = 1_790_000_000_000_000;

    /// So many seconds after the start.
    fn at(seconds: u64) -> u64 {
        START + seconds * 1_000_000
    }

    fn id(seconds: u64, secret: u128) -> SlotId {
        SlotId::new(1, at(seconds), 0xab, 30_000_000, secret)
    }

    /// A limit whose slots live 30 s, and are renewed for a minute.
    fn limit(name: &str) -> Arc<Limit> {
        let policy = format!(
            "limits: {{ {name}: {{ algorithm: concurrency, windows: [{{ quota: 9, per: 30s }}], longest: 1m }} }}"
        );
        let policy = Policy::parse(&policy).unwrap();
        Arc::clone(policy.limit(name).unwrap())
    }

    fn listed(holds: &Holds, now_us: u64) -> Vec<(String, u64, u64, bool)> {
        let (list, _) = holds.list(None, None, now_us);
        let of = |one: ListedHold| {
            let times = (one.since_seconds, one.ends_in_seconds);
            (one.limit, times.0, times.1, one.outlived)
        };
        list.into_iter().map(of).collect()
    }

    #[test]
    fn slots_are_listed_the_oldest_first_until_they_are_freed_or_end() {
        let mut holds = Holds::default();
        let (l, m) = (limit("l"), limit("m"));
        holds.note(id(5, 1), Some(&m), "k", None, at(5));
        holds.note(id(0, 2), Some(&l), "k", Some(0xbeef), at(0));
        holds.note(id(0, 2), Some(&l), "k", None, at(10));
        let of = |limit: &str, since, ends, outlived| (limit.to_owned(), since, ends, outlived);
        let both = [of("l", 20, 20, false), of("m", 15, 15, false)];
        assert_eq!(listed(&holds, at(20)), both);
        let (list, more) = holds.list(None, None, at(20));
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
            let found = holds.list(limit, subject, at(20)).0;
            assert_eq!(found.len(), count, "{limit:?} {subject:?}");
        }
        holds.note(id(0, 2), Some(&l), "k", None, at(30));
        assert_eq!(listed(&holds, at(36)), [of("l", 36, 24, false)]);
        holds.remove(id(0, 2));
        assert!(listed(&holds, at(36)).is_empty());
        holds.forget_ended(at(36));
        assert!(holds.by_age.is_empty());
    }

    #[test]
    fn a_filters_slots_are_listed_where_their_last_sign_went() {
        let (mut one, mut other, l) = (Holds::default(), Holds::default(), limit("l"));
        let vm = Some(7);
        one.note(id(0, 1), Some(&l), "k", vm, at(0));
        for (seconds, at_one, at_other) in
            [(9, 1, 0), (10, 1, 1), (12, 0, 1), (20, 1, 1), (22, 1, 0)]
        {
            if seconds % 10 == 0 {
                let holds = if seconds == 10 { &mut other } else { &mut one };
                holds.note(id(0, 1), Some(&l), "k", vm, at(seconds));
            }
            let lists = [&one, &other].map(|holds| listed(holds, at(seconds)).len());
            assert_eq!(lists, [at_one, at_other], "after {seconds} s");
        }
        // It ended through the other one before its `longest`, a minute: it has not outlived that.
        one.note(id(0, 1), Some(&l), "k", vm, at(48));
        assert!(listed(&one, at(61)).is_empty());
        one.note(id(0, 1), Some(&l), "k", vm, at(58));
        assert!(listed(&one, at(70))[0].3);
    }

    #[test]
    fn a_stream_that_is_older_than_longest_is_listed_until_it_is_freed_but_not_in_use() {
        let (mut holds, l) = (Holds::default(), limit("l"));
        for (secret, renewed) in [(1, vec![]), (2, vec![20, 40, 55]), (3, vec![20, 40, 65])] {
            holds.note(id(0, secret), Some(&l), "k", None, at(0));
            for renewed in renewed {
                holds.note(id(0, secret), Some(&l), "k", None, at(renewed));
            }
        }
        // Of the first, nobody knows anything any more.
        assert_eq!(listed(&holds, at(50)).len(), 2);
        holds.forget_ended(at(90));
        let outlived = |ends| ("l".to_owned(), 90, ends, true);
        assert_eq!(listed(&holds, at(90)), [outlived(0), outlived(5)]);
        assert_eq!(holds.of_limits(at(90))["l"].in_use, 1);
        assert_eq!(holds.of_limits(at(96))["l"].in_use, 0);
        holds.remove(id(0, 2));
        holds.forget_ended(at(65 + 30 + 86_400));
        assert!(holds.by_age.is_empty());
    }

    #[test]
    fn slots_that_are_not_listed_are_told_of() {
        let (mut holds, l) = (Holds::default(), limit("l"));
        for number in 0..MAX_HOLDS as u64 {
            let id = SlotId::new(1, START + number, 1, 30_000_000, 1);
            holds.note(id, Some(&l), "k", None, at(0));
        }
        let (list, more) = holds.list(None, None, at(0));
        assert_eq!((list.len(), more), (MAX_LISTED_HOLDS, true));
        let more = |holds: &Holds, seconds| holds.list(Some("m"), None, at(seconds)).1;
        assert!(!more(&holds, 0));
        holds.note(id(1, 9), Some(&l), "k", None, at(1));
        assert_eq!(holds.by_age.len(), MAX_HOLDS);
        assert!(more(&holds, 1) && !more(&holds, 61));
        // Whose limit the policy does not have any more.
        let mut holds = Holds::default();
        holds.note(id(0, 1), None, "k", None, at(0));
        assert!(holds.by_age.is_empty() && more(&holds, 1));
    }
}
