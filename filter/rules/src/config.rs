//! The plugin's configuration and the rules that a sidecar pushes, compiled into [`Settings`] and [`crate::RuleSet`]s.
//!
//! | file | for |
//! |---|---|
//! | `document.rs` | the rules that a sidecar pushes, compiled line by line |
//! | `rule_set.rs`, `matching.rs`, `checks.rs`, `key_components.rs`, `replies.rs`, `upstream.rs` | rules, from the canonical form |
//! | `fields.rs` | the canonical form: objects all of whose fields are known |
//! | `terms.rs`, `values.rs`, `error.rs` | types of both forms; texts and names; errors |
//! | `expressions.rs` | compiled regular expressions, shared by all sets of a VM |
//! | `strict.rs` | JSON without duplicate fields |
//! | `structure.rs` | a `google.protobuf.Struct`, the form in which Envoy passes YAML |
//! | `fingerprint.rs` | a short text that identifies a configuration |
//! | `schema.rs` | the types of what people write: JSON Schema and reference are generated from them; the sidecar reads them, with `either.rs` and `walk.rs`; the filter has none of them |

mod amounts;
mod checks;
pub mod document;
#[cfg(feature = "schema")]
mod either;
mod error;
mod expressions;
mod fields;
mod fingerprint;
mod key_components;
mod matching;
mod replies;
mod rule_set;
#[cfg(feature = "schema")]
pub mod schema;
mod strict;
mod structure;
pub(crate) mod terms;
mod upstream;
mod values;
#[cfg(feature = "schema")]
pub mod walk;

use std::time::Duration;

use serde_json::Value;

pub use error::ConfigError;
#[cfg(feature = "schema")]
pub use error::nearest;
pub use expressions::free_unused as free_unused_expressions;
pub use fingerprint::fingerprint;
pub use rule_set::MAX_RULES;
pub(crate) use values::MAX_NAME_BYTES;

use crate::key::Hasher;
use crate::settings::{By, Pushed, Settings};
use error::invalid;
use fields::{Fields, word};
use terms::WhenUnavailable;
use values::{name, not_empty};

/// Most sets that one filter may run.
const MAX_SETS: usize = 16;
/// Most time that a request waits for the first rules.
const MAX_HOLD: Duration = Duration::from_secs(10);

/// The value that a configuration stands for.
///
/// # Errors
/// It is empty or malformed.
pub fn json(bytes: &[u8]) -> Result<Value, ConfigError> {
    if bytes.trim_ascii().is_empty() {
        let why = "is empty: give at least `version: 2` and `sidecar`";
        return invalid("configuration", why);
    }
    // Both forms become a JSON value first, so that the VM contains the code that reads a configuration only once.
    match structure::read(bytes) {
        Some(value) => Ok(value),
        None => strict::read(bytes).or_else(|error| invalid("configuration", error)),
    }
}

/// Reads a configuration.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn settings(value: Value) -> Result<(Settings, Pushed), ConfigError> {
    refuse_rules(&value)?;
    let mut file = Fields::of(String::new(), value)?;
    let version = file.number("version")?;
    let version = file.needs("version", version)?;
    if version != 2 {
        let why = format_args!("is {version}: this filter supports version 2");
        return invalid("version", why);
    }
    let sidecar = file.inner("sidecar")?;
    let mut sidecar = file.needs("sidecar", sidecar)?;
    let cluster = sidecar.text("cluster")?;
    let cluster = sidecar.needs("cluster", cluster)?;
    let pepper = file.text("pepper")?;
    let settings = Settings {
        cluster: not_empty("sidecar.cluster", cluster)?,
        timeout: duration(&mut sidecar, "timeout", 1)?.unwrap_or(Duration::from_millis(50)),
        together: sidecar.flag("together")?.unwrap_or(true),
        traces: sidecar.flag("traces")?.unwrap_or_default(),
        hasher: Hasher::new(pepper.as_deref().unwrap_or_default()),
        pepper_env: file.text("pepper_env")?,
    };
    if pepper.is_some() && settings.pepper_env.is_some() {
        return invalid("pepper_env", "stands beside `pepper`: remove one of them");
    }
    sidecar.end()?;
    let pushed = pushed(&mut file)?;
    file.end()?;
    Ok((settings, pushed))
}

/// Takes the pepper from the environment, if the configuration names its variable. As in a file, the line break at its end does
/// not count.
///
/// # Errors
/// There is none.
pub fn read_pepper(
    settings: &mut Settings,
    environment: impl FnOnce(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    let Some(name) = settings.pepper_env.as_deref() else {
        return Ok(());
    };
    let text = environment(name).unwrap_or_default();
    match text.trim_end_matches(['\r', '\n']) {
        "" => {
            let why = format_args!("the environment has no `{name}`, or an empty one");
            invalid("pepper_env", why)
        }
        pepper => {
            settings.hasher = Hasher::new(pepper);
            Ok(())
        }
    }
}

/// Earlier versions had them here.
fn refuse_rules(value: &Value) -> Result<(), ConfigError> {
    let mut fields = ["rules", "reply", "upstream_paths"].into_iter();
    match fields.find(|field| value.get(field).is_some()) {
        None => Ok(()),
        Some(field) => {
            let why = "belongs to the policy: move it there, into the rule set `default`, and say `version: 2` here";
            invalid(field, why)
        }
    }
}

fn pushed(file: &mut Fields) -> Result<Pushed, ConfigError> {
    let (mut sets, mut by) = (vec!["default".to_owned()], None);
    if let Some(mut listed) = file.inner("rule_sets")? {
        let default = listed.text("default")?;
        let default = listed.needs("default", default)?;
        sets = vec![name("rule_sets.default", default)?];
        for (at, other) in listed.texts("others")? {
            if sets.contains(&other) {
                return invalid(&at, format_args!("`{other}` is listed already"));
            }
            sets.push(name(&at, other)?);
        }
        if sets.len() > MAX_SETS {
            let (others, most) = (sets.len() - 1, MAX_SETS - 1);
            let why = format_args!("has {others} entries: give at most {most}");
            return invalid("rule_sets.others", why);
        }
        by = listed.take("by").map(by_route).transpose()?;
        listed.end()?;
    }
    let mut until = file.inner("until_rules")?.unwrap_or_default();
    let then = until.word("then", &["deny", "allow"])?;
    let pushed = Pushed {
        sets,
        by,
        hold: duration(&mut until, "hold", 0)?.unwrap_or(Duration::from_secs(2)),
        then: match then {
            Some(1) => WhenUnavailable::Allow,
            _ => WhenUnavailable::Deny,
        },
    };
    until.end()?;
    Ok(pushed)
}

/// Where the route names the set.
fn by_route(value: Value) -> Result<By, ConfigError> {
    let at = "rule_sets.by";
    if let Value::String(text) = value {
        return word(at, &text, &["route_name"]).map(|_| By::RouteName);
    }
    let mut file = Fields::of(at.to_owned(), value)?;
    let place = file.inner("route_metadata")?;
    let place = file.needs("route_metadata", place)?;
    file.end()?;
    key_components::metadata(place).map(By::Metadata)
}

/// A duration of at least so many milliseconds.
fn duration(
    file: &mut Fields,
    name: &str,
    least_ms: u128,
) -> Result<Option<Duration>, ConfigError> {
    let Some(text) = file.text(name)? else {
        return Ok(None);
    };
    match humantime::parse_duration(&text) {
        Ok(given) if given <= MAX_HOLD && given.as_millis() >= least_ms => Ok(Some(given)),
        _ => {
            let why = format_args!("`{text}` is not a duration between `{least_ms}ms` and `10s`");
            invalid(&file.at(name), why)
        }
    }
}

/// Deserializes a configuration from its value, as whoever wrote it needs to be told what is wrong.
///
/// # Errors
/// It does not have the right shape, or contains rules.
#[cfg(feature = "schema")]
pub fn from_json(value: &Value) -> Result<schema::Configuration, ConfigError> {
    refuse_rules(value)?;
    from_value(value)
}

/// Deserializes a part of a configuration or a policy from its value, without validating it.
///
/// # Errors
/// It does not have the right shape.
#[cfg(feature = "schema")]
pub fn from_value<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, ConfigError> {
    if value.is_array() {
        // `serde` would take its entries for the values of the fields.
        return invalid("configuration", "invalid type: a list, expected an object");
    }
    serde_path_to_error::deserialize(value).map_err(|error| error::read_error(&error))
}
