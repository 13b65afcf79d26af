//! The values of labels whose values are used in several places, an enum each. `docs/metrics.md` explains them; a test compares.

use sluicegate_engine::lease::LeaseRefusal;

/// Defines an enum whose values have names, and a list of all values.
macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$why:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$why])* $value,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            /// The value of the label.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names! {
    /// Where a verdict came from.
    Source {
        /// The store, also when it failed to answer.
        Store = "store",
        /// This sidecar's share of the limit, while the store is down.
        Share = "share",
        /// A denial cached by this sidecar.
        Certificate = "certificate",
        /// A denial cached by the filter, inside Envoy.
        Filter = "filter",
        /// Units that this sidecar had taken in advance.
        Lease = "lease",
        /// An override that makes a key unlimited or blocks it.
        Override = "override",
        /// The request itself, which is invalid.
        Request = "request",
    }
}

names! {
    /// The outcome of a decision.
    Outcome {
        /// Every limit had room for it.
        Admitted = "admitted",
        /// A limit had no room for it.
        Denied = "denied",
        /// A shadow decision that would have been admitted.
        ShadowAdmitted = "shadow_admitted",
        /// A shadow decision that would have been denied.
        ShadowDenied = "shadow_denied",
        /// A shadow decision for which the store did not answer.
        ShadowUnavailable = "shadow_unavailable",
        /// A shadow decision that cannot be made.
        ShadowError = "shadow_error",
        /// The store did not answer.
        Unavailable = "unavailable",
        /// The decision cannot be made.
        Error = "error",
    }
}

names! {
    /// Why a connection to Redis was made.
    ConnectionCause {
        /// It is one of the first.
        Start = "start",
        /// The one before was closed.
        Closed = "closed",
        /// It did not answer, or too late.
        Silent = "silent",
        /// The primary, or the name's address, is another one.
        Moved = "moved",
        /// Redis refused it, or what was sent.
        Refused = "refused",
        /// The one before had its longest life.
        Planned = "planned",
        /// A file with credentials has changed.
        Credentials = "credentials",
    }
}

names! {
    /// Why the store made no decision.
    FailureKind {
        /// No answer within `store_timeout`.
        Timeout = "timeout",
        /// It could not be reached, or the connection broke.
        Connection = "connection",
        /// It rejected the user name or the password.
        Auth = "auth",
        /// It answered with an error.
        Refused = "refused",
        /// Its answer could not be read.
        Reply = "reply",
        /// A key holds data that the script did not write.
        State = "state",
        /// The deadline passed in the queue or on the way: no unit was consumed.
        Late = "late",
        /// The queue was full.
        Overloaded = "overloaded",
        /// The embedded store has reached `memory_limit`.
        Full = "full",
    }
}

/// Every reason for which a key has no lease, with its label.
pub const LEASE_REFUSALS: [(LeaseRefusal, &str); 4] = [
    (LeaseRefusal::Seldom, "seldom"),
    (LeaseRefusal::NearLimit, "near_limit"),
    (LeaseRefusal::Late, "late"),
    (LeaseRefusal::Store, "store"),
];

names! {
    /// The outcome of a policy reload.
    ReloadOutcome {
        /// The new policy is in force.
        Loaded = "loaded",
        /// The new policy was refused; the previous one stays in force.
        Refused = "refused",
    }
}

names! {
    /// What became of a receipt.
    SettleOutcome {
        /// As much was used as was taken, or less.
        Returned = "returned",
        /// More was used than was taken.
        Charged = "charged",
        /// What settles that returned or charged units said was used.
        Used = "used",
        /// It was settled before, its time was over, or there was none like it.
        Unknown = "unknown",
    }
}

impl Outcome {
    /// This outcome of a shadow decision, which is counted separately.
    pub const fn as_shadow(self) -> Self {
        match self {
            Self::Admitted => Self::ShadowAdmitted,
            Self::Denied => Self::ShadowDenied,
            Self::Unavailable => Self::ShadowUnavailable,
            Self::Error => Self::ShadowError,
            shadow => shadow,
        }
    }
}

impl From<&sluicegate_protocol::Verdict<'_>> for Outcome {
    fn from(verdict: &sluicegate_protocol::Verdict<'_>) -> Self {
        use sluicegate_protocol::Verdict;
        match verdict {
            Verdict::Admitted(_) => Self::Admitted,
            Verdict::Denied(_) => Self::Denied,
            Verdict::Unavailable { .. } => Self::Unavailable,
            Verdict::Error(_) => Self::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The rows of a table whose first cell is `label` and the second a value.
    fn documented(page: &str, label: &str) -> BTreeSet<String> {
        let start = format!("| `{label}` | `");
        let rows = page.lines().filter_map(|line| line.strip_prefix(&start));
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned()))
            .collect()
    }

    fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> BTreeSet<String> {
        all.iter().map(|value| name(*value).to_owned()).collect()
    }

    #[test]
    fn docs_metrics_lists_exactly_the_values_of_each_label() {
        let page = include_str!("../../../docs/metrics.md");
        // Of a decision, and of the rules (`sluicegate_rules_info`).
        let sources = names(Source::ALL, Source::name);
        let of_rules = ["file", "last_good"].map(str::to_owned);
        for (label, values) in [
            ("source", &sources | &of_rules.into()),
            ("verdict", names(Outcome::ALL, Outcome::name)),
            ("kind", names(FailureKind::ALL, FailureKind::name)),
            (
                "outcome",
                &names(ReloadOutcome::ALL, ReloadOutcome::name)
                    | &names(SettleOutcome::ALL, SettleOutcome::name),
            ),
            ("reason", names(&LEASE_REFUSALS, |(_, name)| name)),
        ] {
            assert_eq!(documented(page, label), values, "{label}");
        }
    }

    #[test]
    fn the_runbook_covers_every_kind_of_store_failure() {
        let page = include_str!("../../../docs/runbook.md");
        let (_, table) = page.split_once("| kind | means |").unwrap();
        let rows = table.lines().skip(1).take_while(|row| row.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let covered: BTreeSet<_> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect();
        assert_eq!(covered, names(FailureKind::ALL, FailureKind::name));
    }
}
