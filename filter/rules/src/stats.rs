//! The filter's counters, by name. Envoy has them too, and gets the counts from time to time: a hostcall for every count would
//! mean three for a denial.
//!
//! Rule and limit are written as Istio writes tags into names, `rule=.=RULE;.;`: Istio's `extraStatTags` make labels of
//! those and of nothing else. Elsewhere `stats_tags` with the same expression do. A name is read to the end of its mark, so
//! it may contain dots.

use std::cell::{Cell, RefCell};

/// All counters of one rule set; each is identified by its index in the list of names.
#[derive(Debug, Default)]
pub struct Counters {
    /// With the count that Envoy does not have yet.
    counters: Vec<(String, Cell<i64>)>,
    /// For each rule: the index of its first counter.
    starts: Vec<usize>,
    /// For each rule: the index of the first counter of its settles, if it has any.
    settles: Vec<Option<usize>>,
}

/// The beginning of all names, after Envoy's own `wasmcustom.`. Not the plugin's name: Istio and Envoy Gateway choose that,
/// and no dashboard could know it. Plugins of one Envoy share the counters that have the same name.
pub const PREFIX: &str = "sluicegate.";

/// Most different rules that have counters of their own in a VM's life, and most limits of rules: Envoy never frees a counter,
/// and a sidecar may push other names a thousand times.
const MAX_OWN_RULES: usize = 512;
const MAX_OWN_LIMITS: usize = 8_192;
/// Stands for the names of all later ones.
const OTHER: &str = "_other";

thread_local! {
    // In order: a set would make the VM's code larger.
    static OWN_RULES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static OWN_LIMITS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Whether one of this name has counters of its own.
fn has_own(known: &mut Vec<String>, most: usize, name: &str) -> bool {
    match known.binary_search_by(|known| known.as_str().cmp(name)) {
        Ok(_) => true,
        Err(_) if known.len() == most => false,
        Err(index) => {
            known.insert(index, name.to_owned());
            true
        }
    }
}

/// The name of a rule's counter.
pub fn name_of_rule(rule: &str, name: &str) -> String {
    format!("rule=.={rule};.;rule_{name}")
}

/// The name of a counter of one of a rule's limits.
pub fn name_of_limit(rule: &str, limit: &str, name: &str) -> String {
    format!("rule=.={rule};.;limit=.={limit};.;rule_limit_{name}")
}

/// The counters of every rule, in order.
pub const OF_RULE: [&str; 3] = ["decisions", "unavailable_allowed", "unavailable_denied"];

/// The counters of every rule that settles.
pub const OF_SETTLE: [&str; 11] = [
    "settle_known",
    "settle_unknown",
    "settle_failed",
    "settle_cut",
    "settle_not_reached",
    "settle_odd",
    "settle_lost",
    "settle_units_returned",
    "settle_units_charged",
    "settle_units_kept",
    "settle_units_lost",
];

/// Which of [`OF_SETTLE`], in its order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OfSettle {
    Known,
    Unknown,
    Failed,
    Cut,
    NotReached,
    Odd,
    Lost,
    UnitsReturned,
    UnitsCharged,
    UnitsKept,
    UnitsLost,
}

/// Lists the counters that every configuration has, and their indices.
macro_rules! fixed {
    ($($index:ident = $name:expr,)+) => {
        /// The counters that every configuration has. `docs/metrics.md` says what each counts.
        pub const FIXED: [&str; [$($name),+].len()] = [$($name),+];

        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "it only counts")]
        enum Index { $($index),+ }

        impl Counters {
            $(#[doc = "Its index."] pub const $index: usize = Index::$index as usize;)+
        }
    };
}

fixed! {
    DECISIONS = "decisions",
    ADMITTED = "admitted",
    DENIED = "denied",
    UNAVAILABLE_ALLOWED = "unavailable_allowed",
    UNAVAILABLE_DENIED = "unavailable_denied",
    REFUSED_COST = "refused_cost_over_limit",
    REFUSED_MISSING = "refused_missing_part",
    REFUSED_AMBIGUOUS = "refused_ambiguous_part",
    REFUSED_UNREADABLE = "refused_unreadable_part",
    ERROR_NO_ANSWER = "error_no_answer",
    ERROR_UNREACHABLE = "error_unreachable",
    ERROR_STATUS = "error_status",
    ERROR_BODY = "error_body",
    ERROR_STORE = "error_store",
    ERROR_DECISION = "error_decision",
    ERROR_FULL = "error_full",
    REFUSED_TOO_LONG = "refused_too_long",
    ERROR_UNKNOWN_CLUSTER = ERROR_UNKNOWN_CLUSTER,
    CONFIGURATION_REFUSED = CONFIGURATION_REFUSED,
    ADMITTED_BY_LEASE = "admitted_by_lease",
    SLOTS_OUTLIVED = "slots_outlived",
}

/// Also counted for announcements, before there may be any rules.
pub const ERROR_UNKNOWN_CLUSTER: &str = "error_unknown_cluster";

/// Counters of a configuration before it has rules, and of those that the sidecar pushes, whichever they are.
pub const OF_UPDATES: [&str; 5] = [
    CONFIGURATION_UNBUILT,
    RULES_UPDATED,
    RULES_REFUSED,
    NO_RULES_ALLOWED,
    NO_RULES_DENIED,
];
/// The VM had too much memory for another configuration.
pub const CONFIGURATION_UNBUILT: &str = "configuration_unbuilt";
/// Rules from the sidecar came into force.
pub const RULES_UPDATED: &str = "rules_updated";
/// Rules from the sidecar could not be used.
pub const RULES_REFUSED: &str = "rules_refused";
/// Requests that passed because no rules were known yet.
pub const NO_RULES_ALLOWED: &str = "no_rules_allowed";
/// Requests that were answered with 503 because no rules were known yet.
pub const NO_RULES_DENIED: &str = "no_rules_denied";

/// Counted by a VM that never has a configuration, so not by index.
pub const CONFIGURATION_REFUSED: &str = "configuration_refused";

impl Counters {
    /// The counters that every configuration has.
    pub(crate) fn new() -> Self {
        let mut counters = Self::default();
        FIXED
            .iter()
            .for_each(|name| counters.add((*name).to_owned()));
        counters
    }

    /// Adds the counters of the next rule and of each of its limits: one for denials, or for a shadow rule two, for requests that it
    /// would have admitted and denied.
    pub(crate) fn add_rule<'l>(
        &mut self,
        rule: &str,
        (shadow, settles): (bool, bool),
        limits: impl Iterator<Item = &'l str>,
    ) {
        self.starts.push(self.counters.len());
        let own_rule = OWN_RULES.with_borrow_mut(|known| has_own(known, MAX_OWN_RULES, rule));
        let rule = if own_rule { rule } else { OTHER };
        for name in OF_RULE {
            self.add(name_of_rule(rule, name));
        }
        let of_limit: &[&str] = if shadow {
            &["shadow_denied", "shadow_admitted"]
        } else {
            &["denied"]
        };
        for limit in limits {
            let own = own_rule && {
                let pair = format!("{rule};{limit}");
                OWN_LIMITS.with_borrow_mut(|known| has_own(known, MAX_OWN_LIMITS, &pair))
            };
            let limit = if own { limit } else { OTHER };
            for name in of_limit {
                self.add(name_of_limit(rule, limit, name));
            }
        }
        self.settles.push(settles.then_some(self.counters.len()));
        for name in OF_SETTLE.iter().filter(|_| settles) {
            self.add(name_of_rule(rule, name));
        }
    }

    fn add(&mut self, name: String) {
        self.counters.push((name, Cell::new(0)));
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.counters.iter().map(|(name, _)| name.as_str())
    }

    /// Increments a counter.
    pub fn count(&self, index: usize) {
        self.add_to(index, 1);
    }

    /// Adds to a counter.
    fn add_to(&self, index: usize, more: u64) {
        if let Some((_, count)) = self.counters.get(index) {
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            count.set(count.get().saturating_add(more));
        }
    }

    /// Takes the counts since the last time, without those of nothing.
    pub fn take(&self) -> impl Iterator<Item = (&str, i64)> {
        let counts = self
            .counters
            .iter()
            .map(|(name, count)| (name.as_str(), count.take()));
        counts.filter(|(_, count)| *count > 0)
    }

    fn of_rule(&self, rule: usize, offset: usize) -> usize {
        // An index without a counter is ignored.
        self.starts
            .get(rule)
            .map_or(usize::MAX, |start| start.saturating_add(offset))
    }

    fn of_limit(&self, rule: usize, offset: usize) -> usize {
        self.of_rule(rule, offset.saturating_add(OF_RULE.len()))
    }

    /// Adds to a counter of a rule that settles.
    pub(crate) fn count_settle(&self, rule: usize, counter: OfSettle, more: u64) {
        if let Some(start) = self.settles.get(rule).copied().flatten() {
            self.add_to(start + counter as usize, more);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A set with this many rules, which have three limits each; every tenth is a shadow rule.
    fn set(first: usize, rules: usize, limits: &[String]) -> Counters {
        let mut counters = Counters::new();
        for n in first..first + rules {
            let limits = limits.iter().map(String::as_str);
            counters.add_rule(&format!("rule-{n}"), (n % 10 == 0, false), limits);
        }
        counters
    }

    fn named(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{prefix}-{n}")).collect()
    }

    #[test]
    fn a_thousand_sets_with_names_of_their_own_leave_a_bounded_number_of_counters() {
        let mut names = BTreeSet::new();
        for n in 0..1_000 {
            let limits = named(&format!("limit-{n}"), 3);
            let counters = set(n * 16, 16, &limits);
            counters.count(counters.denied(1, 2));
            let counted: Vec<_> = counters.take().map(|(name, _)| name.to_owned()).collect();
            let expected = if n * 16 < MAX_OWN_RULES {
                format!(
                    "rule=.=rule-{};.;limit=.=limit-{n}-2;.;rule_limit_denied",
                    n * 16 + 1
                )
            } else {
                "rule=.=_other;.;limit=.=_other;.;rule_limit_denied".to_owned()
            };
            assert_eq!(counted, [expected]);
            names.extend(counters.names().map(str::to_owned));
        }
        let of_rules = (MAX_OWN_RULES + 1) * OF_RULE.len();
        assert!(
            names.len() <= FIXED.len() + of_rules + MAX_OWN_RULES * 3 * 2 + 3,
            "{}",
            names.len()
        );
        // A set from before keeps its names, and so does one that has some of them.
        let limits = named("limit-1", 3);
        let again = set(16, 16, &limits);
        assert!(again.names().all(|name| !name.contains("_other")));
    }

    #[test]
    fn limits_with_names_of_their_own_are_bounded_too() {
        let mut names = BTreeSet::new();
        for n in 0..100 {
            let limits = named(&format!("limit-{n}"), 100);
            names.extend(set(1, 2, &limits).names().map(str::to_owned));
        }
        let of_limits = names.iter().filter(|name| name.contains("limit=.="));
        assert_eq!(of_limits.count(), MAX_OWN_LIMITS + 2);
        assert!(names.contains("rule=.=rule-1;.;limit=.=_other;.;rule_limit_denied"));
    }
}
