//! Cached denials that the sidecar has not been told about.

use sluicegate_protocol::CachedDenials;

use super::DenialCache;

/// Most keys in one report; denials of further keys are reported without a key. Nearly every callout carries a report,
/// so there are few in each. A key has at most half a kilobyte.
const REPORTED_KEYS: usize = 128;

impl DenialCache {
    /// Counts a denial for the next report, without an allocation if an equal one was counted before.
    pub(super) fn count(&mut self, denied: &CachedDenials<'_>) {
        let mut key = denied.key.as_deref().unwrap_or_default();
        if !self.unreported.contains_key(key) {
            if self.unreported.len() >= REPORTED_KEYS {
                key = "";
            }
            self.unreported.entry(key.to_owned()).or_default();
        }
        let Some(of_key) = self.unreported.get_mut(key) else {
            return;
        };
        let known = of_key
            .iter_mut()
            .find(|known| known.limit == denied.limit && known.shadow == denied.shadow);
        match known {
            Some(known) => known.count = known.count.saturating_add(denied.count),
            None => of_key.push(CachedDenials {
                limit: denied.limit.as_ref().to_owned().into(),
                shadow: denied.shadow.as_deref().map(|rule| rule.to_owned().into()),
                key: (!key.is_empty()).then(|| key.to_owned().into()),
                count: denied.count,
            }),
        }
    }

    /// The cached denials since the last report, for the next callout.
    pub fn report(&mut self) -> Vec<CachedDenials<'static>> {
        let by_key = std::mem::take(&mut self.unreported);
        by_key.into_values().flatten().collect()
    }

    /// Restores a report that failed, for the next callout. (If it did arrive and only the answer was lost, it is
    /// counted twice, which is better than not at all.)
    pub fn put_back(&mut self, report: Vec<CachedDenials<'static>>) {
        report.iter().for_each(|denied| self.count(denied));
    }

    /// Whether there is anything to report.
    pub fn has_report(&self) -> bool {
        !self.unreported.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_a_bounded_number_of_keys_and_counts_all_denials() {
        let mut denials = DenialCache::default();
        for name in 0..300 {
            for _ in 0..2 {
                denials.count(&CachedDenials {
                    limit: "l".into(),
                    shadow: None,
                    key: Some(format!("k{name}").into()),
                    count: 1,
                });
            }
        }
        let report = denials.report();
        assert_eq!(report.iter().map(|denied| denied.count).sum::<u64>(), 600);
        let (named, rest): (Vec<_>, Vec<_>) =
            report.iter().partition(|denied| denied.key.is_some());
        // Those without a key are together.
        assert_eq!((named.len(), rest.len()), (REPORTED_KEYS, 1));
        assert!(named.iter().all(|denied| denied.count == 2));
    }
}
