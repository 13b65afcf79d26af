//! Documents of rules, as a sidecar sends them.

use serde_json::{Value, json};

/// The document of one set: its first line, and its rules.
pub fn document(set: Value, rules: &[Value]) -> String {
    let mut lines = vec![set];
    rules.iter().for_each(|rule| expressions(rule, &mut lines));
    lines.extend(rules.iter().map(|rule| json!({ "rule": rule })));
    let head =
        json!({ "format": 1, "digest": "0123456789ab", "instance": 1, "lines": lines.len() });
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("{head}\n{}", lines.concat())
}

/// Adds a line for each regular expression in a rule.
fn expressions(value: &Value, lines: &mut Vec<Value>) {
    let Some(fields) = value.as_object() else {
        let list = value.as_array().into_iter().flatten();
        return list.for_each(|one| expressions(one, lines));
    };
    for (name, field) in fields {
        if name == "regex" || name == "path_regex" {
            lines.push(json!({ "regex": field }));
        }
        expressions(field, lines);
    }
}
