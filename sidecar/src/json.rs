//! JSON documents.

use serde_json::Value;

/// Merges one document into another.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, inner) in from {
                merge(into.entry(name).or_insert(Value::Null), inner);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
