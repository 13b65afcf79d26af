//! What callers named in the last minute: filters that announced themselves, limits that the policy does not have. Pure.
//!
//! A filter announces itself every 15 seconds. One that has not for a minute is gone: its Envoy has stopped, or runs another
//! configuration now.

use std::collections::BTreeMap;
use std::time::Duration;

const GONE_AFTER: Duration = Duration::from_mins(1);
/// Most entries of each kind. An Envoy has a few plugins, and for a while their old configurations; any client of the port may name
/// more, and each is a series in Prometheus or a line in the log.
const MOST: usize = 32;

/// When each was last named.
#[derive(Debug, Default)]
pub struct Recent<T> {
    last_named: BTreeMap<T, Duration>,
}

impl<T: Ord> Recent<T> {
    /// Notes that `one` was named; returns whether it is new. `now` comes from a clock that does not step. Entries beyond the bound
    /// are dropped.
    pub fn note(&mut self, one: T, now: Duration) -> bool {
        if !self.last_named.contains_key(&one) && self.last_named.len() >= MOST {
            self.forget_gone(now);
            if self.last_named.len() >= MOST {
                return false;
            }
        }
        let before = self.last_named.insert(one, now);
        before.is_none_or(|before| is_gone(before, now))
    }

    /// The entries of the last minute.
    pub fn present(&mut self, now: Duration) -> impl Iterator<Item = &T> {
        self.forget_gone(now);
        self.last_named.keys()
    }

    fn forget_gone(&mut self, now: Duration) {
        self.last_named.retain(|_, named| !is_gone(*named, now));
    }
}

fn is_gone(named: Duration, now: Duration) -> bool {
    now.saturating_sub(named) >= GONE_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn present(filters: &mut Recent<String>, now: Duration) -> Vec<String> {
        filters.present(now).cloned().collect()
    }

    #[test]
    fn a_filter_is_present_for_a_minute_after_its_last_announcement() {
        let mut filters = Recent::default();
        assert!(filters.note("a".to_owned(), at(0)));
        assert!(!filters.note("a".to_owned(), at(0)));
        filters.note("b".to_owned(), at(30));
        assert_eq!(present(&mut filters, at(59)), ["a", "b"]);
        assert_eq!(present(&mut filters, at(60)), ["b"]);
        assert!(filters.note("a".to_owned(), at(61)));
        assert_eq!(present(&mut filters, at(62)), ["a", "b"]);
        assert!(present(&mut filters, at(200)).is_empty());
    }

    #[test]
    fn invented_filters_are_bounded_and_make_room_when_they_are_gone() {
        let mut filters = Recent::default();
        for number in 0..1_000 {
            filters.note(format!("{number:012x}"), at(0));
        }
        assert_eq!(present(&mut filters, at(1)).len(), MOST);
        // Those that are known stay.
        filters.note("000000000000".to_owned(), at(50));
        filters.note("b".to_owned(), at(61));
        assert_eq!(present(&mut filters, at(62)), ["000000000000", "b"]);
    }
}
