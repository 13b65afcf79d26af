//! Which requests: conditions of the short form's `match`, and exceptions from them.

use serde_json::{Map, Value, json};

/// Requests that meet all of these conditions, and none of the exceptions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    all: Vec<Value>,
    except: Vec<Value>,
}

impl Scope {
    pub fn of(condition: Value) -> Self {
        let all = vec![condition];
        Self {
            all,
            except: Vec::new(),
        }
    }

    pub fn and(&self, other: &Self) -> Self {
        let all = [self.all.as_slice(), &other.all].concat();
        let except = [self.except.as_slice(), &other.except].concat();
        Self { all, except }
    }

    pub fn without(mut self, other: &Self) -> Self {
        self.except.push(other.to_match());
        self
    }

    /// Whether no request is left.
    pub fn is_empty(&self) -> bool {
        self.except.contains(&json!("all"))
    }

    /// As a `match`.
    pub fn to_match(&self) -> Value {
        let (mut found, mut more) = (Map::new(), Vec::new());
        for (field, given) in self.all.iter().filter_map(Value::as_object).flatten() {
            match (found.get_mut(field), given) {
                (None, _) => _ = found.insert(field.clone(), given.clone()),
                (Some(before), _) if before == given => {}
                (Some(Value::Array(list)), Value::Array(other)) if field != "host" => {
                    list.extend(other.iter().cloned())
                }
                _ => more.push(json!({ field: given })),
            }
        }
        match (found.get("path"), self.except.as_slice()) {
            (Some(path), []) if found.len() == 1 && more.is_empty() => return path.clone(),
            (_, []) if found.is_empty() => return json!("all"),
            _ => {}
        }
        if !more.is_empty() {
            found.insert("all".to_owned(), more.into());
        } else if found.is_empty() {
            found.insert("all".to_owned(), json!(true));
        }
        if !self.except.is_empty() {
            found.insert("except".to_owned(), json!(self.except));
        }
        found.into()
    }
}

/// The component of a key that a header is.
pub fn header(name: &str) -> Value {
    match name.to_lowercase().as_str() {
        ":path" => json!("path"),
        ":authority" | "host" => json!("host"),
        ":method" => json!("method"),
        name => json!({ "header": name }),
    }
}

/// The condition that a component of a key is so; none if the policy has no such condition.
pub fn condition(component: &Value, how: &str, given: Value) -> Option<Scope> {
    let text = given.as_str().unwrap_or_default();
    let path = text.trim_end_matches('/');
    let found = match (component.as_str(), how) {
        (Some("path"), "equals") if text == "/" => json!({ "path_regex": "/" }),
        (Some("path"), "equals") if is_plain(path) => json!({ "path": path }),
        (Some("path"), "prefix") if text == "/" => json!({}),
        (Some("path"), "prefix") if is_plain(path) => json!({ "path": format!("{path}/") }),
        (Some("path"), "regex") => json!({ "path_regex": given }),
        (Some(word @ ("host" | "method")), "equals") => json!({ word: given }),
        // Every request has one.
        (Some(_), "present") => json!({}),
        (Some(_), _) => return None,
        (None, _) => {
            let (kind, name) = component.as_object()?.iter().next()?;
            let (field, mut condition) = match kind.as_str() {
                "header" => ("headers", json!({ "name": name })),
                "query" => ("query", json!({ "name": name })),
                "metadata" => ("metadata", name.clone()),
                _ => return None,
            };
            condition.as_object_mut()?.insert(how.to_owned(), given);
            json!({ field: [condition] })
        }
    };
    Some(Scope::of(found))
}

/// Whether the short form reads nothing but itself in a path.
fn is_plain(path: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    path.starts_with('/') && path.chars().all(is_part)
}

/// A text as an expression that matches it.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && !"/-_".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
