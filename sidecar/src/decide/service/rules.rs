//! Gives rules to filters, and knows which filter has which.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_protocol::{FilterList, RULES_WAIT_S, RulesReport};

use super::Service;
use crate::clock;

impl Service {
    /// The rules for a filter, as a document. While it has the newest, it waits for others, for some time.
    pub async fn rules_for(&self, filter: Option<(RulesReport<'_>, &str)>) -> String {
        let mut rules = self.policy.rules();
        let (report, waits) = match filter {
            Some((report, version)) => {
                let waits = self.filters.asks(&report, version, clock::now_us());
                (report, waits)
            }
            None => (RulesReport::default(), None),
        };
        let known = report.known();
        if let Some(waits) = waits {
            let changed = rules.wait_for(|rules| known != Some(rules.digest.as_str()));
            tokio::select! {
                _ = changed => {}
                () = tokio::time::sleep(Duration::from_secs(RULES_WAIT_S)) => {}
                () = self.filters.stopping() => {}
            }
            drop(waits);
        }
        let rules = rules.borrow();
        rules.document(&report.sets, known, self.instance)
    }

    /// How many filters are in which state.
    pub fn filter_states(&self) -> BTreeMap<&'static str, usize> {
        let rules = &self.policy.current().policy.rules;
        self.filters.states(&rules.digest)
    }

    /// How many filters have another pepper than the policy's consumers.
    pub fn filters_with_other_pepper(&self) -> usize {
        let policy = &self.policy.current().policy;
        self.filters.with_other_pepper(policy)
    }

    /// The filters that have asked for rules lately.
    pub fn list_filters(&self) -> FilterList {
        let policy = &self.policy.current().policy;
        let now_us = clock::now_us();
        FilterList {
            more: self.filters.has_unlisted(now_us),
            filters: self.filters.list(policy, now_us),
            rules: policy.rules.digest.clone(),
        }
    }
}
