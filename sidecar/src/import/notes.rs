//! What differs, and what was not imported, for those who read the policy.

use std::collections::{BTreeMap, BTreeSet};

/// The differences: a name, and what people read.
const DIFFERENCES: &str = include_str!("differences.txt");
/// Those of every policy.
const ALWAYS: [&str; 4] = ["slides", "burns", "preflights", "store"];

/// Most places that are named with a difference.
const MAX_PLACES: usize = 4;

#[derive(Default)]
pub struct Notes {
    differs: BTreeMap<String, BTreeSet<String>>,
    /// What was not imported, after its place.
    pub missing: Vec<String>,
}

impl Notes {
    /// There is this difference, if its text is known; in this place, if there is one.
    pub fn differs(&mut self, what: &str, at: &str) {
        let places = self.differs.entry(what.to_owned()).or_default();
        places.extend((!at.is_empty()).then(|| at.to_owned()));
    }

    /// This was not imported.
    pub fn missing(&mut self, at: &str, why: &str) {
        self.left_out(format!("{at}: {why}"));
    }

    /// Whether something of this place was not imported.
    pub fn is_told(&self, at: &str) -> bool {
        let begin = format!("{at}: ");
        self.missing.iter().any(|one| one.starts_with(&begin))
    }

    /// The same, with the place before it.
    pub fn left_out(&mut self, why: String) {
        if !self.missing.contains(&why) {
            self.missing.push(why);
        }
    }

    /// All of them, as comments of a policy.
    pub fn to_comments(&self) -> String {
        let mut lines = vec![
            "Imported from envoyproxy/ratelimit (docs/moving-envoy-ratelimit.md). What differs:"
                .to_owned(),
        ];
        for (what, told) in DIFFERENCES.lines().filter_map(|line| line.split_once(": ")) {
            let places = self.differs.get(what);
            if places.is_none() && !ALWAYS.contains(&what) {
                continue;
            }
            let all: Vec<_> = places.into_iter().flatten().map(String::as_str).collect();
            let more = if all.len() > MAX_PLACES { ", ..." } else { "" };
            let first = all.get(..MAX_PLACES).unwrap_or(&all).join(", ");
            lines.push(match first.as_str() {
                "" => format!("- {told}"),
                first => format!("- {told} ({first}{more})"),
            });
        }
        if !self.missing.is_empty() {
            lines.push("What was not imported:".to_owned());
            lines.extend(self.missing.iter().map(|one| format!("- {one}")));
        }
        // A line break in a file's text would end the comment.
        let comment = |line: &String| format!("# {}\n", line.replace(['\n', '\r'], " "));
        lines.iter().map(comment).collect()
    }
}
