//! Which filters ask this sidecar, and with which configurations. Pure.
//!
//! A filter announces itself every 15 seconds. One that has not for a minute is gone: its Envoy has stopped, or runs another
//! configuration now.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_protocol::FilterInfo;

const GONE_AFTER: Duration = Duration::from_mins(1);
/// Most pairs of version and configuration. An Envoy has a few plugins, and for a while their old configurations; anybody who
/// reaches the port may announce more, and each is a series in Prometheus.
const MAX_FILTERS: usize = 32;

/// A filter as it announces itself, and when it last did.
#[derive(Debug, Default)]
pub struct Filters {
    last_seen: BTreeMap<(String, String), Duration>,
}

impl Filters {
    /// Notes an announcement. `now` comes from a clock that does not step. A pair beyond the bound is dropped.
    pub fn note(&mut self, info: FilterInfo<'_>, now: Duration) {
        let pair = (info.version.to_owned(), info.configuration.to_owned());
        if !self.last_seen.contains_key(&pair) && self.last_seen.len() >= MAX_FILTERS {
            self.forget_gone(now);
            if self.last_seen.len() >= MAX_FILTERS {
                return;
            }
        }
        self.last_seen.insert(pair, now);
    }

    /// The versions and configurations of the filters that ask now.
    pub fn present(&mut self, now: Duration) -> impl Iterator<Item = (&str, &str)> {
        self.forget_gone(now);
        let pairs = self.last_seen.keys();
        pairs.map(|(version, configuration)| (version.as_str(), configuration.as_str()))
    }

    fn forget_gone(&mut self, now: Duration) {
        self.last_seen
            .retain(|_, seen| now.saturating_sub(*seen) < GONE_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn info(configuration: &str) -> FilterInfo<'_> {
        FilterInfo {
            version: "0.1.0",
            configuration,
        }
    }

    fn present(filters: &mut Filters, now: Duration) -> Vec<String> {
        let configurations = filters.present(now).map(|(_, one)| one.to_owned());
        configurations.collect()
    }

    #[test]
    fn a_filter_is_present_for_a_minute_after_its_last_announcement() {
        let mut filters = Filters::default();
        filters.note(info("a"), at(0));
        filters.note(info("b"), at(30));
        assert_eq!(present(&mut filters, at(59)), ["a", "b"]);
        assert_eq!(present(&mut filters, at(60)), ["b"]);
        filters.note(info("a"), at(61));
        assert_eq!(present(&mut filters, at(62)), ["a", "b"]);
        assert!(present(&mut filters, at(200)).is_empty());
    }

    #[test]
    fn invented_filters_are_bounded_and_make_room_when_they_are_gone() {
        let mut filters = Filters::default();
        for number in 0..1_000 {
            filters.note(info(&format!("{number:012x}")), at(0));
        }
        assert_eq!(present(&mut filters, at(1)).len(), MAX_FILTERS);
        // Those that are known stay.
        filters.note(info("000000000000"), at(50));
        filters.note(info("b"), at(61));
        assert_eq!(present(&mut filters, at(62)), ["000000000000", "b"]);
    }
}
