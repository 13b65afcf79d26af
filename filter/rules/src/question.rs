//! The question of a request to the sidecar: its checks, grouped into decisions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use crate::config::terms::WhenUnavailable;
use crate::rule::RuleSet;
use crate::settle::Reserved;

/// One check of a request, with its key and cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedCheck {
    /// Index of its rule.
    pub rule: usize,
    /// Index of its limit in the rule's list: see [`RuleSet::limit_name`].
    pub limit: usize,
    /// Whom to count.
    pub key: String,
    /// Units to consume.
    pub cost: u64,
    /// In place of the limit's own.
    pub quota: Option<u64>,
    /// If the units are only reserved: what is needed to settle them.
    pub reserved: Option<Reserved>,
}

/// The checks of a shadow rule: a decision of its own, which is not enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Index of the rule.
    pub rule: usize,
    /// Admitted together or not at all, as if the rule were enforced by itself.
    pub checks: Vec<ResolvedCheck>,
}

/// The question of a request to the sidecar.
#[derive(Clone, Debug)]
pub struct Question {
    /// The rules that it was derived from: all indices in it are theirs.
    pub rules: Rc<RuleSet>,
    /// The checks of all enforced rules that match, admitted together or not at all.
    pub checks: Vec<ResolvedCheck>,
    /// One for each shadow rule that matches.
    pub shadows: Vec<Shadow>,
    /// `Deny` if one of the enforced rules has `when_unavailable: deny`.
    pub when_unavailable: WhenUnavailable,
    /// The request is gRPC, so the reply must be too.
    pub grpc: bool,
    /// The request's `traceparent`, if it is sampled and the configuration has `traces`.
    pub traceparent: Option<String>,
}

impl Question {
    /// The name of a check's limit.
    pub fn limit_name(&self, check: &ResolvedCheck) -> &str {
        self.rules.limit_name(check.rule, check.limit)
    }

    /// The largest part of the quota that a check reserves, in percent, if it does.
    pub fn most(&self, check: &ResolvedCheck) -> Option<u64> {
        self.rules.settle_rule(check).map(|settle| settle.most)
    }

    /// Number of decisions in this question, and so of verdicts in its answer.
    pub fn decisions(&self) -> usize {
        usize::from(!self.checks.is_empty()) + self.shadows.len()
    }

    fn all_checks(&self) -> impl Iterator<Item = &ResolvedCheck> {
        let shadows = self.shadows.iter().flat_map(|shadow| &shadow.checks);
        self.checks.iter().chain(shadows)
    }

    /// Whether a check asks for this limit and key.
    pub fn asks(&self, limit: &str, key: &str) -> bool {
        self.all_checks()
            .any(|check| check.key == key && self.limit_name(check) == limit)
    }

    /// Whether a check is known to ask for slots.
    pub fn asks_for_slots(&self) -> bool {
        self.all_checks().any(|check| self.slots(check).is_some())
    }

    /// A number for the limit and key of each enforced check. Two that collide share a bound on waiting requests, and no more.
    pub fn subjects(&self) -> Vec<u64> {
        let subject = |check: &ResolvedCheck| {
            let mut hasher = DefaultHasher::new();
            (check.rule, check.limit, &check.key).hash(&mut hasher);
            hasher.finish()
        };
        self.checks.iter().map(subject).collect()
    }
}
