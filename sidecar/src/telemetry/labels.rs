//! The values of labels that are a fixed set, each an enum. `docs/metrics.md` tells what they mean; a test compares.

/// An enum whose values have names, and a list of them all.
macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$why:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$why])* $value,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            /// As a label's value.
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
        /// The store, or its failing to answer.
        Store = "store",
        /// This sidecar's share of the limit, while the store is down.
        Share = "share",
        /// A denial certificate of this sidecar.
        Certificate = "certificate",
        /// A denial certificate of the filter, inside Envoy.
        Filter = "filter",
        /// The request itself: it cannot be decided.
        Request = "request",
    }
}

names! {
    /// What a decision came to.
    Outcome {
        /// There was room.
        Admitted = "admitted",
        /// There was none.
        Denied = "denied",
        /// A shadow decision that would have been admitted.
        ShadowAdmitted = "shadow_admitted",
        /// A shadow decision that would have been denied.
        ShadowDenied = "shadow_denied",
        /// The store did not answer.
        Unavailable = "unavailable",
        /// The decision cannot be made.
        Error = "error",
    }
}

names! {
    /// Why the store made no decision.
    FailureKind {
        /// No answer within `store_timeout`.
        Timeout = "timeout",
        /// It could not be reached, or the connection broke.
        Connection = "connection",
        /// It refused the user or the password.
        Auth = "auth",
        /// It answered with an error.
        Refused = "refused",
        /// Its answer could not be read.
        Reply = "reply",
        /// A key in it holds what the script did not write.
        State = "state",
        /// Time ran out in the queue, or on the way: nothing was taken.
        Late = "late",
        /// More callers waited than the queue holds.
        Overloaded = "overloaded",
        /// The embedded store holds as many keys as it may.
        Full = "full",
        /// It was not asked: it failed repeatedly just before.
        Open = "open",
    }
}

names! {
    /// What reading the policy file again came to.
    Reloaded {
        /// The new policy is in force.
        Loaded = "loaded",
        /// The policy before stays in force.
        Refused = "refused",
    }
}

impl Outcome {
    /// The same of a decision that a shadow rule asked for: it is counted apart.
    pub const fn in_shadow(self) -> Self {
        match self {
            Self::Admitted => Self::ShadowAdmitted,
            Self::Denied => Self::ShadowDenied,
            other => other,
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
            Verdict::Error { .. } => Self::Error,
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
    fn the_page_of_metrics_has_every_value_and_no_other() {
        let page = include_str!("../../../docs/metrics.md");
        assert_eq!(documented(page, "source"), names(Source::ALL, Source::name));
        assert_eq!(
            documented(page, "verdict"),
            names(Outcome::ALL, Outcome::name)
        );
        assert_eq!(
            documented(page, "kind"),
            names(FailureKind::ALL, FailureKind::name)
        );
        assert_eq!(
            documented(page, "outcome"),
            names(Reloaded::ALL, Reloaded::name)
        );
    }

    #[test]
    fn the_runbook_tells_what_to_do_about_every_kind_of_failure() {
        let page = include_str!("../../../docs/runbook.md");
        let (_, table) = page.split_once("| kind | means |").unwrap();
        let rows = table.lines().skip(1).take_while(|row| row.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let told: BTreeSet<_> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect();
        assert_eq!(told, names(FailureKind::ALL, FailureKind::name));
    }
}
