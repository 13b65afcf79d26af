//! The plugin's configuration: deserialized, validated and compiled into [`Settings`] and a [`RuleSet`].
//!
//! | file | for |
//! |---|---|
//! | `schema.rs` | the types of the configuration; the JSON Schema and the reference are generated from them |
//! | `either.rs` | fields that accept two forms |
//! | `reader.rs` | from JSON to those types, reporting the field of every mistake |
//! | `strict.rs` | JSON without duplicate fields |
//! | `fingerprint.rs` | a short text that identifies a configuration |
//! | `structure.rs` | a `google.protobuf.Struct`, the form in which Envoy passes YAML |
//! | `matching.rs`, `checks.rs`, `key_components.rs`, `replies.rs`, `upstream.rs` | validation, by subject |
//! | `values.rs` | validation of names and lists, for all of them |
//! | `error.rs` | errors, with suggestions for misspelt names |

mod checks;
mod either;
mod error;
mod fingerprint;
mod key_components;
mod matching;
mod reader;
mod replies;
pub mod schema;
mod strict;
mod structure;
mod upstream;
mod values;

use std::time::Duration;

pub use error::{ConfigError, nearest};
pub use fingerprint::fingerprint;
pub(crate) use values::MAX_NAME_BYTES;

use crate::key::Hasher;
use crate::query::ParameterNames;
use crate::reply::LimitTexts;
use crate::request_view::ViewOptions;
use crate::rule::{Rule, RuleSet};
use crate::settings::Settings;
use crate::stats::Counters;
use error::{invalid, read_error};
use values::{name, not_empty};

/// The version of this format.
const VERSION: u64 = 1;
/// Most rules. More are hard to reason about, and each has counters in Envoy, which are never freed.
const MAX_RULES: usize = 256;

/// Reads and validates a configuration: JSON, or a serialized `google.protobuf.Struct`.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn parse(bytes: &[u8]) -> Result<(Settings, RuleSet), ConfigError> {
    validate(&read(bytes)?)
}

/// Deserializes a configuration without validating it.
///
/// # Errors
/// It does not have the right shape.
pub fn read(bytes: &[u8]) -> Result<schema::Configuration, ConfigError> {
    from_json(&json(bytes)?)
}

/// Likewise, from its value.
///
/// # Errors
/// It does not have the right shape.
pub fn from_json(value: &serde_json::Value) -> Result<schema::Configuration, ConfigError> {
    reader::read(value).map_err(read_error)
}

/// The value that a configuration stands for.
///
/// # Errors
/// It is empty or malformed.
pub fn json(bytes: &[u8]) -> Result<serde_json::Value, ConfigError> {
    if bytes.trim_ascii().is_empty() {
        return invalid(
            "configuration",
            "is empty: give at least `sidecar` and `rules`",
        );
    }
    // Both forms become a JSON value first, so that the VM contains the code that reads a configuration only once.
    match structure::read(bytes) {
        Some(value) => Ok(value),
        None => strict::read(bytes).or_else(|error| invalid("configuration", error)),
    }
}

/// Validates a configuration.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn validate(file: &schema::Configuration) -> Result<(Settings, RuleSet), ConfigError> {
    if file.version != VERSION {
        return invalid(
            "version",
            format_args!(
                "version {} is not supported: this filter supports version {VERSION}",
                file.version
            ),
        );
    }
    let settings = Settings {
        cluster: not_empty("sidecar.cluster", &file.sidecar.cluster)?.to_owned(),
        timeout: timeout(&file.sidecar.timeout)?,
        together: file.sidecar.together,
        traces: file.sidecar.traces,
        hasher: Hasher::new(&file.pepper),
    };
    Ok((settings, validate_rules(file)?))
}

fn validate_rules(file: &schema::Configuration) -> Result<RuleSet, ConfigError> {
    if file.rules.is_empty() || file.rules.len() > MAX_RULES {
        return invalid(
            "rules",
            format_args!("has {} entries: give 1 to {MAX_RULES}", file.rules.len()),
        );
    }
    let reply = file.reply.clone().unwrap_or_default();
    replies::validate("reply", &reply)?;
    let mut rules: Vec<Rule> = Vec::with_capacity(file.rules.len());
    let mut counters = Counters::new();
    let mut memo_slots = 0;
    for (index, rule) in file.rules.iter().enumerate() {
        let at = format!("rules[{index}]");
        if rules.iter().any(|earlier| earlier.name == rule.name) {
            return invalid(
                &format!("{at}.name"),
                format_args!("another rule has the name `{}` already", rule.name),
            );
        }
        let mut valid = validate_rule(&at, rule, &reply)?;
        valid.matcher = valid.matcher.memoized(&mut memo_slots);
        let limits = valid.limits.iter().map(|limit| limit.name.as_str());
        counters.add_rule(&valid.name, valid.shadow, limits);
        rules.push(valid);
    }
    let (upstream, semicolon) = upstream::validate(&file.upstream_paths);
    let (mut parameters, mut methods) = (Vec::new(), Vec::new());
    rules
        .iter()
        .for_each(|rule| rule.names(&mut parameters, &mut methods));
    Ok(RuleSet {
        view_options: ViewOptions {
            upstream,
            semicolon,
            parameters: ParameterNames::new(parameters),
            methods,
            memo_slots,
        },
        counters,
        rules,
    })
}

fn validate_rule(
    at: &str,
    file: &schema::Rule,
    reply: &schema::Reply,
) -> Result<Rule, ConfigError> {
    name(&format!("{at}.name"), &file.name)?;
    if file.shadow && file.stop {
        return invalid(
            &format!("{at}.stop"),
            "a rule with `shadow: true` must not affect other rules: remove `stop`",
        );
    }
    let when_unavailable = match file.when_unavailable {
        Some(when) => when,
        None if file.shadow => schema::WhenUnavailable::Allow,
        None => {
            return invalid(
                &format!("{at}.when_unavailable"),
                "is missing: set `allow` (cheap to serve unmetered) or `deny` (expensive)",
            );
        }
    };
    let (matcher, variables) = matching::validate(&format!("{at}.match"), &file.matcher)?;
    let (checks, limits) = checks::validate(&format!("{at}.checks"), &file.checks, &variables)?;
    let limits = limits
        .iter()
        .map(|limit| LimitTexts::new(&file.name, limit));
    let reply = file.reply.as_ref().unwrap_or(reply);
    replies::validate(&format!("{at}.reply"), reply)?;
    Ok(Rule {
        name: file.name.clone(),
        matcher,
        checks,
        limits: limits.collect(),
        when_unavailable,
        stop: file.stop,
        shadow: file.shadow,
        reply: reply.clone(),
    })
}

fn timeout(text: &str) -> Result<Duration, ConfigError> {
    match humantime::parse_duration(text) {
        Ok(timeout) if (1..=10_000).contains(&timeout.as_millis()) => Ok(timeout),
        _ => invalid(
            "sidecar.timeout",
            format_args!("`{text}` is not a duration between `1ms` and `10s`"),
        ),
    }
}
