//! Cached denials that the sidecar has not been told about.

use std::collections::BTreeMap;

use sluicegate_protocol::CachedDenials;

/// Most keys in one report; denials of further keys are reported without a key. Nearly every callout carries a report,
/// so there are few in each. A key has at most half a kilobyte.
const REPORTED_KEYS: usize = 128;

/// Unreported denials by key. Shadow denials, and those of too many keys, are under the empty key, which no check has.
#[derive(Debug, Default)]
pub(super) struct Unreported(BTreeMap<String, Vec<CachedDenials<'static>>>);

impl Unreported {
    /// Counts for the next report, without an allocation if the same was counted before.
    pub fn count(&mut self, key: &str, limit: &str, shadow: Option<&str>, count: u64) {
        if let Some(known) = self.0.get_mut(key) {
            return add(known, key, limit, shadow, count);
        }
        let key = if self.0.len() < REPORTED_KEYS {
            key
        } else {
            ""
        };
        let known = self.0.entry(key.to_owned()).or_default();
        add(known, key, limit, shadow, count);
    }

    /// Takes the whole report.
    pub fn report(&mut self) -> Vec<CachedDenials<'static>> {
        let by_key = std::mem::take(&mut self.0);
        by_key.into_values().flatten().collect()
    }

    /// Restores a report that failed.
    pub fn put_back(&mut self, report: Vec<CachedDenials<'static>>) {
        for denied in report {
            self.count(
                denied.key.as_deref().unwrap_or_default(),
                &denied.limit,
                denied.shadow.as_deref(),
                denied.count,
            );
        }
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn add(
    of_key: &mut Vec<CachedDenials<'static>>,
    key: &str,
    limit: &str,
    shadow: Option<&str>,
    count: u64,
) {
    let known = of_key
        .iter_mut()
        .find(|known| known.limit == limit && known.shadow.as_deref() == shadow);
    match known {
        Some(known) => known.count = known.count.saturating_add(count),
        None => of_key.push(CachedDenials {
            limit: limit.to_owned().into(),
            shadow: shadow.map(|rule| rule.to_owned().into()),
            key: (!key.is_empty()).then(|| key.to_owned().into()),
            count,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_a_bounded_number_of_keys_and_counts_all_denials() {
        let mut unreported = Unreported::default();
        for name in 0..300 {
            for _ in 0..2 {
                unreported.count(&format!("k{name}"), "l", None, 1);
            }
        }
        let report = unreported.report();
        assert_eq!(report.iter().map(|denied| denied.count).sum::<u64>(), 600);
        let (named, rest): (Vec<_>, Vec<_>) =
            report.iter().partition(|denied| denied.key.is_some());
        // Those without a key are together.
        assert_eq!((named.len(), rest.len()), (REPORTED_KEYS, 1));
        assert!(named.iter().all(|denied| denied.count == 2));
    }
}
