//! Envoy's configuration, as its admin interface prints it.

use serde_json::Value;

/// Finds the values of this name, at any depth.
pub fn find<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                if field == name {
                    found.push(value);
                }
                find(name, value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| find(name, value, found)),
        _ => {}
    }
}
