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
            except: vec![],
        }
    }

    pub fn and(&self, other: &Self) -> Self {
        let all = [self.all.as_slice(), &other.all].concat();
        let except = [self.except.as_slice(), &other.except].concat();
        Self { all, except }
    }

    pub fn without(mut self, other: &Self) -> Self {
        if !other.is_empty() {
            let mut other = other.clone();
            // Those are excepted anyway.
            other.except.retain(|one| !self.except.contains(one));
            self.except.push(other.to_match());
        }
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
                    list.extend(other.iter().cloned());
                }
                _ => more.push(json!({ field: given })),
            }
        }
        let is_plain = more.is_empty() && self.except.is_empty();
        match (found.get("path"), found.len()) {
            (_, 0) if is_plain => return json!("all"),
            (Some(path), 1) if is_plain => return path.clone(),
            (_, 0) => _ = found.insert("all".to_owned(), json!(true)),
            _ if more.is_empty() => {}
            _ => _ = found.insert("all".to_owned(), more.into()),
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

/// The condition that a component of a key is so.
///
/// # Errors
/// The policy has no such condition.
pub fn condition(component: &Value, how: &str, given: Value) -> Result<Scope, String> {
    let text = given.as_str().unwrap_or_default();
    let path = text.trim_end_matches('/');
    let (kind, name) = match component
        .as_object()
        .and_then(|fields| fields.iter().next())
    {
        Some((kind, name)) => (kind.as_str(), name),
        None => (component.as_str().unwrap_or_default(), component),
    };
    let listed = |field: &str, mut condition: Value| {
        if let Some(fields) = condition.as_object_mut() {
            fields.insert(how.to_owned(), given.clone());
        }
        json!({ field: [condition] })
    };
    Ok(Scope::of(match (kind, how) {
        ("header", _) => listed("headers", json!({ "name": name })),
        ("query", _) => listed("query", json!({ "name": name })),
        ("metadata", _) => listed("metadata", name.clone()),
        ("path", "equals") if text == "/" => json!({ "path_regex": "/" }),
        ("path", "equals") if is_plain(path) => json!({ "path": path }),
        ("path", "prefix") if text == "/" => json!({}),
        ("path", "prefix") if is_plain(path) => json!({ "path": format!("{path}/") }),
        ("path", "regex") => json!({ "path_regex": given }),
        ("host" | "method", "equals") => json!({ kind: given }),
        // Every request has one.
        ("host" | "method" | "path" | "address", "present") => json!({}),
        ("host", _) => listed("headers", json!({ "name": ":authority" })),
        ("method", _) => listed("headers", json!({ "name": ":method" })),
        _ => {
            return Err(format!(
                "the policy has no condition `{kind}` {how} {given}"
            ));
        }
    }))
}

/// Whether the short form reads nothing but itself in a path.
fn is_plain(path: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.~:@=,".contains(c);
    path.starts_with('/') && !path.contains("/:") && path.chars().all(is_part)
}

/// A text as an expression that matches it.
pub fn escaped(text: &str) -> String {
    let escape = |c: &char| c.is_ascii_punctuation() && !"/-_".contains(*c);
    let each = |c: char| Some('\\').filter(|_| escape(&c)).into_iter().chain([c]);
    text.chars().flat_map(each).collect()
}
