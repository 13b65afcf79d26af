//! A short text that identifies a configuration, so that the one in force can be compared with the one in a file.
//!
//! It does not depend on what a mesh changes when it copies a configuration: the order of fields, whitespace, `1` or `1.0`,
//! a field that is `null` or absent, and JSON or a `google.protobuf.Struct`. Texts count as they are written: no mesh
//! rewrites a duration.

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Twelve hexadecimal digits of a SHA-256.
pub fn fingerprint(configuration: &Value) -> String {
    let mut canonical = Vec::new();
    append(&mut canonical, configuration);
    let mut text = String::with_capacity(12);
    for byte in Sha256::digest(&canonical).iter().take(6) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Appends a value so that different values never give the same bytes: each begins with its kind and length.
fn append(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => head(to, b'n', 0),
        Value::Bool(flag) => head(to, b'b', (*flag).into()),
        Value::Number(number) => {
            // Through a struct, every number is a double. `+ 0.0` makes 0 of -0.
            let number = number.as_f64().unwrap_or(f64::NAN) + 0.0;
            head(to, b'd', 0);
            to.extend(number.to_be_bytes());
        }
        Value::String(text) => append_text(to, text),
        Value::Array(values) => {
            head(to, b'a', values.len());
            values.iter().for_each(|value| append(to, value));
        }
        Value::Object(fields) => {
            // Sorted here, because a feature of serde_json that another crate may switch on keeps the order of the text; by
            // insertion, because a sort has 6 KB of code.
            let mut sorted: Vec<(&String, &Value)> = Vec::new();
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let at = sorted.partition_point(|(before, _)| *before < name);
                sorted.insert(at, (name, value));
            }
            head(to, b'o', sorted.len());
            for (name, value) in sorted {
                append_text(to, name);
                append(to, value);
            }
        }
    }
}

fn append_text(to: &mut Vec<u8>, text: &str) {
    head(to, b's', text.len());
    to.extend(text.as_bytes());
}

fn head(to: &mut Vec<u8>, kind: u8, size: usize) {
    to.push(kind);
    // The same on machines whose `usize` differs.
    to.extend((size as u64).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::json as read;
    use super::*;

    fn of(text: &str) -> String {
        fingerprint(&read(text.as_bytes()).unwrap())
    }

    #[test]
    fn what_a_mesh_changes_makes_no_difference() {
        let one = of(
            r#"{"version":1,"sidecar":{"cluster":"c","timeout":"50ms"},"rules":[{"name":"a"}]}"#,
        );
        assert_eq!(one.len(), 12);
        for same in [
            r#"{"rules":[{"name":"a"}],"sidecar":{"timeout":"50ms","cluster":"c"},"version":1}"#,
            r#"{ "version": 1.0, "sidecar": { "cluster": "\u0063", "timeout": "50ms" }, "rules": [ { "name": "a" } ] }"#,
            r#"{"version":1,"sidecar":{"cluster":"c","timeout":"50ms","traces":null},"rules":[{"name":"a"}]}"#,
        ] {
            assert_eq!(of(same), one, "{same}");
        }
    }

    #[test]
    fn different_configurations_have_different_fingerprints() {
        let all = json!([{}, { "a": "bc" }, { "ab": "c" }, { "a": "b", "c": "" }, { "a": ["b", "c"] }, { "a": ["bc"] },
            { "a": [["b"], "c"] }, { "a": 1 }, { "a": "1" }, { "a": true }, { "a": false }, { "a": [] }, { "a": {} },
            { "a": [null] }, { "a": 0.5 }]);
        let all = all.as_array().unwrap();
        let distinct: BTreeSet<_> = all.iter().map(fingerprint).collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_fingerprint_never_changes() {
        // Compared across versions: filters and command line of different releases must agree.
        let value = json!({ "sidecar": { "cluster": "c" }, "rules": [{ "name": "r", "cost": 2 }] });
        assert_eq!(fingerprint(&value), "6893d1ec2c24");
    }
}
