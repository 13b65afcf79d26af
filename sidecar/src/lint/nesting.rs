//! How deep a YAML text is nested, aliases included. The library that loads it bounds how much aliases expand to and how deep
//! `[[[` may go, but not blocks: each level is a call of a function, so a file of some thousand would exhaust the stack.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser};

/// Deeper than any manifest: Envoy's own files have about 25 levels, and plugin configurations that are strings begin anew.
const MAX_DEPTH: usize = 128;

/// A list or mapping that is open.
struct Open {
    anchor: usize,
    /// Levels below it, so far.
    height: usize,
}

/// Whether a text is nested deeper than the bound. Says nothing about a text that is not YAML.
pub fn is_too_deep(text: &str) -> bool {
    let mut open: Vec<Open> = Vec::new();
    let mut heights = BTreeMap::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, _)) = event else { break };
        let height = match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                open.push(Open { anchor, height: 0 });
                0
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(ended) = open.pop() else { break };
                heights.insert(ended.anchor, ended.height + 1);
                ended.height + 1
            }
            Event::Alias(anchor) => heights.get(&anchor).copied().unwrap_or_default(),
            _ => continue,
        };
        if open.len() + height > MAX_DEPTH {
            return true;
        }
        if let Some(parent) = open.last_mut() {
            parent.height = parent.height.max(height);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lists_and_aliases_are_counted() {
        let blocks = |depth: usize| -> String {
            let lines = (0..depth).map(|level| " ".repeat(level) + "a:\n");
            lines.collect()
        };
        assert!(!is_too_deep(&blocks(MAX_DEPTH - 1)));
        assert!(is_too_deep(&blocks(MAX_DEPTH + 1)));
        assert!(is_too_deep(&("- ".repeat(MAX_DEPTH + 1) + "x")));
        // Each line is one deeper than the one before.
        let aliases = |lines: usize| {
            let line = |n: usize| format!("- &a{} [*a{n}]\n", n + 1);
            "- &a0 []\n".to_owned() + &(0..lines).map(line).collect::<String>()
        };
        assert!(!is_too_deep(&aliases(MAX_DEPTH - 3)));
        assert!(is_too_deep(&aliases(MAX_DEPTH + 1)));
        assert!(!is_too_deep("a: [b\n"), "not YAML");
    }
}
