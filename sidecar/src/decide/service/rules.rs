//! Gives rules to filters, and knows which filter has which.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use sluicegate_protocol::{FilterList, RULES_WAIT_S, RulesReport};

use super::Service;
use crate::clock;
use crate::decide::filters::MAX_TOLD;

impl Service {
    /// The rules for a filter, as a document. While it has the newest, it waits for others, for some time.
    pub async fn rules_for(&self, filter: Option<(RulesReport<'_>, &str)>) -> String {
        let mut news = self.policy.news();
        let (report, waits) = match filter {
            Some((report, version)) => {
                let waits = self.filters.asks(&report, version, clock::now_us());
                (report, waits)
            }
            None => (RulesReport::default(), None),
        };
        if let Some(waits) = waits {
            let begun = self.policy.current().policy.rules.digest.clone();
            let is_other = |(): &()| {
                let epoch = self.policy.current();
                let (digest, limits) = (&epoch.policy.rules.digest, &epoch.limits);
                let knows_limits = report.limits.as_ref().is_none_or(|known| known == limits);
                *digest != begun || !report.knows(digest) || !knows_limits
            };
            let changed = news.wait_for(is_other);
            tokio::select! {
                _ = changed => {}
                () = tokio::time::sleep(Duration::from_secs(RULES_WAIT_S)) => {}
                () = self.filters.stopping() => {}
            }
            drop(waits);
        }
        let epoch = self.policy.current();
        let ended = report.limits.as_ref();
        let ended = ended.and_then(|known| epoch.ended_since(known));
        let head = json!({ "instance": self.instance, "earlier": epoch.earlier, "limits": epoch.limits, "ended": ended });
        let rules = &epoch.policy.rules;
        rules.document(&report.sets, report.knows(&rules.digest), head)
    }

    /// How many filters are in which state.
    pub fn filter_states(&self) -> BTreeMap<&'static str, usize> {
        let rules = &self.policy.current().policy.rules;
        self.filters.states(&rules.digest, clock::now_us())
    }

    /// How many filters have another pepper than the policy's consumers.
    pub fn filters_with_other_pepper(&self) -> usize {
        let policy = &self.policy.current().policy;
        self.filters.with_other_pepper(policy)
    }

    /// The number of this sidecar, by which filters name it.
    pub fn number(&self) -> String {
        format!("{:x}", self.instance)
    }

    /// How many filters keep earlier rules for the sake of this sidecar.
    pub fn holds_back(&self) -> usize {
        let rules = &self.policy.current().policy.rules;
        let now_us = clock::now_us();
        self.filters.held_by(&self.number(), &rules.digest, now_us)
    }

    /// The filters that do not take the rules of the policy, and why. No counts: each line is logged once.
    pub fn filters_apart(&self) -> Vec<String> {
        self.apart(clock::now_us(), MAX_TOLD)
    }

    /// The same, of all filters, also of those that may ask another sidecar at the moment.
    pub(super) fn apart_or_unheard(&self) -> Vec<String> {
        self.apart(0, usize::MAX)
    }

    fn apart(&self, now_us: u64, most: usize) -> Vec<String> {
        let (number, policy) = (self.number(), &self.policy.current().policy);
        let rules = &policy.rules.digest;
        let mut told = self.filters.apart(&number, policy, now_us);
        told.truncate(most);
        if self.filters.held_by(&number, rules, now_us) > 0 {
            told.push(format!(
                "filters keep earlier rules because this sidecar has these, {rules}, in force, and another one has newer ones"
            ));
        }
        told
    }

    /// The filters that have asked for rules lately.
    pub fn list_filters(&self) -> FilterList {
        let epoch = self.policy.current();
        let (policy, now_us) = (&epoch.policy, clock::now_us());
        FilterList {
            policy: epoch.decides_by.clone(),
            in_memory: !self.store.is_shared(),
            more: self.filters.has_unlisted(now_us),
            filters: self.filters.list(&self.number(), policy, now_us),
            rules: policy.rules.digest.clone(),
            sidecar: self.number(),
            refusal: self.policy.source.refusal(),
        }
    }
}
