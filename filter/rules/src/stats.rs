//! What the filter counts, by name. The host makes a counter of each when it reads its configuration.

use crate::rule::Rule;

/// Every counter of one configuration; each is known by its place in the list of names.
#[derive(Debug, Default)]
pub struct Counters {
    names: Vec<String>,
    /// For each rule: where its own counters begin.
    starts: Vec<usize>,
}

/// The counters that every rule has, in their places: `rule.RULE.NAME`.
pub const OF_RULE: [(&str, &str); 3] = [
    ("decisions", "requests that this rule had a check for"),
    (
        "unavailable_allowed",
        "of those, let through without a verdict",
    ),
    (
        "unavailable_denied",
        "of those, answered with 503 for want of a verdict",
    ),
];

/// The counters that every configuration has: name, and what it counts. `docs/filter.md` has them in a table.
pub const FIXED: [(&str, &str); 17] = [
    ("decisions", "requests that a rule had a check for"),
    ("admitted", "of those, let through by a verdict"),
    ("denied", "of those, answered with 429"),
    (
        "unavailable_allowed",
        "of those, let through without a verdict",
    ),
    (
        "unavailable_denied",
        "of those, answered with 503 for want of a verdict",
    ),
    (
        "refused_cost_over_limit",
        "of those, answered with 422: the cost is more than the limit ever holds",
    ),
    (
        "refused_missing_part",
        "requests answered with 403: without a part of a key, and `when_missing: deny`",
    ),
    (
        "refused_ambiguous_part",
        "requests answered with 400: with several different values of a part of a key",
    ),
    (
        "refused_unreadable_part",
        "requests answered with 400: with a part of a key that cannot be read",
    ),
    (
        "error_no_answer",
        "questions without an answer in time: the sidecar is slow or hangs",
    ),
    (
        "error_unreachable",
        "questions that Envoy could not bring to a sidecar: no such cluster, no healthy endpoint or connection refused",
    ),
    (
        "error_status",
        "questions that the sidecar refused: answered with another status than 200",
    ),
    (
        "error_body",
        "questions whose answer could not be read, or did not fit the question",
    ),
    (
        "error_store",
        "decisions without a verdict because the sidecar's store did not answer it",
    ),
    (
        "error_decision",
        "decisions that could not be made: policy and configuration do not fit, or one request has more than 32 checks",
    ),
    (
        "error_full",
        "requests without a verdict because too many waited for one",
    ),
    (
        "refused_too_long",
        "requests answered with 414 or 431: path, query or header is longer than a rule may look at",
    ),
];

impl Counters {
    pub(crate) const DECISIONS: usize = 0;
    pub(crate) const ADMITTED: usize = 1;
    pub(crate) const DENIED: usize = 2;
    pub(crate) const UNAVAILABLE_ALLOWED: usize = 3;
    pub(crate) const UNAVAILABLE_DENIED: usize = 4;
    pub(crate) const REFUSED_COST: usize = 5;
    pub(crate) const REFUSED_MISSING: usize = 6;
    pub(crate) const REFUSED_AMBIGUOUS: usize = 7;
    pub(crate) const REFUSED_UNREADABLE: usize = 8;
    pub(crate) const ERROR_NO_ANSWER: usize = 9;
    pub(crate) const ERROR_UNREACHABLE: usize = 10;
    pub(crate) const ERROR_STATUS: usize = 11;
    pub(crate) const ERROR_BODY: usize = 12;
    pub(crate) const ERROR_STORE: usize = 13;
    pub(crate) const ERROR_DECISION: usize = 14;
    pub(crate) const ERROR_FULL: usize = 15;
    pub(crate) const REFUSED_TOO_LONG: usize = 16;

    /// For each rule and each of its limits: one counter of denials, or two of what a shadow rule would have done.
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut names: Vec<String> = FIXED.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut starts = Vec::with_capacity(rules.len());
        for rule in rules {
            starts.push(names.len());
            names.extend(OF_RULE.map(|(name, _)| format!("rule.{}.{name}", rule.name)));
            for limit in &rule.limits {
                let what: &[&str] = if rule.shadow {
                    &["shadow_denied", "shadow_admitted"]
                } else {
                    &["denied"]
                };
                for what in what {
                    names.push(format!("rule.{}.limit.{limit}.{what}", rule.name));
                }
            }
        }
        Self { names, starts }
    }

    /// All names, in their places.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn of_rule(&self, rule: usize, offset: usize) -> usize {
        // A place that is nobody's is ignored by the host.
        self.starts
            .get(rule)
            .map_or(usize::MAX, |start| start.saturating_add(offset))
    }

    fn of_limit(&self, rule: usize, offset: usize) -> usize {
        self.of_rule(rule, offset.saturating_add(OF_RULE.len()))
    }

    pub(crate) fn decisions(&self, rule: usize) -> usize {
        self.of_rule(rule, 0)
    }

    pub(crate) fn unavailable_allowed(&self, rule: usize) -> usize {
        self.of_rule(rule, 1)
    }

    pub(crate) fn unavailable_denied(&self, rule: usize) -> usize {
        self.of_rule(rule, 2)
    }

    pub(crate) fn denied(&self, rule: usize, limit: usize) -> usize {
        self.of_limit(rule, limit)
    }

    pub(crate) fn shadow_denied(&self, rule: usize, limit: usize) -> usize {
        self.of_limit(rule, limit.saturating_mul(2))
    }

    pub(crate) fn shadow_admitted(&self, rule: usize, limit: usize) -> usize {
        self.of_limit(rule, limit.saturating_mul(2).saturating_add(1))
    }
}
