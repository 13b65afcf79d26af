//! The plugin's configuration: deserialized, validated and compiled into [`Settings`] and a [`RuleSet`].
//!
//! | file | for |
//! |---|---|
//! | `schema.rs` | the types of the configuration; the JSON Schema and the reference are generated from them |
//! | `either.rs` | fields that accept two forms |
//! | `reader.rs` | from JSON to those types, reporting the field of every mistake |
//! | `strict.rs` | JSON without duplicate fields |
//! | `fingerprint.rs` | a short text that identifies a configuration |
//! | `document.rs` | the rules that a sidecar pushes, compiled line by line |
//! | `walk.rs` | what rules contain, each with its path |
//! | `expressions.rs` | compiled regular expressions, shared by all sets of a VM |
//! | `structure.rs` | a `google.protobuf.Struct`, the form in which Envoy passes YAML |
//! | `matching.rs`, `checks.rs`, `key_components.rs`, `replies.rs`, `upstream.rs` | validation, by subject |
//! | `values.rs` | validation of names and lists, for all of them |
//! | `error.rs` | errors, with suggestions for misspelt names |

mod checks;
pub mod document;
mod either;
mod error;
mod expressions;
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
#[cfg(feature = "schema")]
pub mod walk;

use std::time::Duration;

pub use error::{ConfigError, nearest};
pub use expressions::free_unused as free_unused_expressions;
pub use fingerprint::fingerprint;
pub(crate) use values::MAX_NAME_BYTES;

use crate::key::Hasher;
use crate::path::Upstream;
use crate::query::ParameterNames;
use crate::reply::LimitTexts;
use crate::request_view::ViewOptions;
use crate::rule::{Rule, RuleSet};
use crate::settings::{By, Pushed, Settings};
use crate::stats::Counters;
use error::{invalid, read_error};
use values::{name, not_empty};

/// Most rules. More are hard to reason about, and each has counters in Envoy, which are never freed.
const MAX_RULES: usize = 256;

/// Most sets that one filter may run.
const MAX_SETS: usize = 16;
/// Most time that a request waits for the first rules.
const MAX_HOLD: Duration = Duration::from_secs(10);

/// The rules of a configuration, or where they come from.
#[derive(Debug)]
pub enum Rules {
    /// Version 1.
    Inline(Box<RuleSet>),
    /// Version 2.
    Pushed(Pushed),
}

/// Reads and validates a configuration that has its rules: JSON, or a serialized `google.protobuf.Struct`.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn parse(bytes: &[u8]) -> Result<(Settings, RuleSet), ConfigError> {
    match validate(&read(bytes)?)? {
        (settings, Rules::Inline(set)) => Ok((settings, *set)),
        (_, Rules::Pushed(_)) => invalid("version", "is 2: the rules are in the policy"),
    }
}

/// Deserializes a configuration without validating it.
///
/// # Errors
/// It does not have the right shape.
pub fn read(bytes: &[u8]) -> Result<schema::Configuration, ConfigError> {
    from_value(&json(bytes)?)
}

/// Deserializes a configuration from its value, without validating it. Not generic: or the VM would have this code twice.
///
/// # Errors
/// It does not have the right shape.
pub fn from_json(value: &serde_json::Value) -> Result<schema::Configuration, ConfigError> {
    from_value(value)
}

/// Deserializes a configuration or a rule set of a policy from its value, without validating it.
///
/// # Errors
/// It does not have the right shape.
pub fn from_value<T: serde::de::DeserializeOwned>(
    value: &serde_json::Value,
) -> Result<T, ConfigError> {
    reader::read(value).map_err(read_error)
}

/// The value that a configuration stands for.
///
/// # Errors
/// It is empty or malformed.
pub fn json(bytes: &[u8]) -> Result<serde_json::Value, ConfigError> {
    if bytes.trim_ascii().is_empty() {
        let why = "is empty: give at least `sidecar` and `rules`";
        return invalid("configuration", why);
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
pub fn validate(file: &schema::Configuration) -> Result<(Settings, Rules), ConfigError> {
    let settings = Settings {
        cluster: not_empty("sidecar.cluster", &file.sidecar.cluster)?.to_owned(),
        timeout: duration("sidecar.timeout", &file.sidecar.timeout, 1)?,
        together: file.sidecar.together,
        traces: file.sidecar.traces,
        hasher: Hasher::new(&file.pepper),
    };
    let rules = match (file.version, &file.rule_sets) {
        (1, None) if file.until_rules.is_none() => {
            let mut builder = Builder::new(&file.reply, &file.upstream_paths, Windows::Null)?;
            if file.rules.is_empty() {
                let why = format_args!("has 0 entries: give 1 to {MAX_RULES}");
                return invalid("rules", why);
            }
            for (index, rule) in file.rules.iter().enumerate() {
                builder.add(&format!("rules[{index}]"), rule)?;
            }
            Rules::Inline(Box::new(builder.finish()?))
        }
        (1, _) => {
            let why =
                "is 1, which has its `rules` here: with `rule_sets` or `until_rules`, set it to 2";
            return invalid("version", why);
        }
        (2, sets) => Rules::Pushed(pushed(file, &sets.clone().unwrap_or_default())?),
        (other, _) => {
            return invalid(
                "version",
                format_args!(
                    "version {other} is not supported: this filter supports versions 1 and 2"
                ),
            );
        }
    };
    Ok((settings, rules))
}

/// Everything that is wrong with a configuration, not only the first of its rules.
#[cfg(feature = "schema")]
pub fn mistakes(file: &schema::Configuration) -> Vec<ConfigError> {
    let Err(first) = validate(file) else {
        return Vec::new();
    };
    let builder = Builder::new(&file.reply, &file.upstream_paths, Windows::default());
    let of_rules = builder.map(|mut builder| builder.add_all(&file.rules, |_, _| Ok(())));
    let mut found = of_rules.unwrap_or_default();
    if !found.contains(&first) {
        found.push(first);
    }
    found
}

fn pushed(file: &schema::Configuration, sets: &schema::RuleSets) -> Result<Pushed, ConfigError> {
    for (field, is_there) in [
        ("rules", !file.rules.is_empty()),
        ("reply", file.reply.is_some()),
        (
            "upstream_paths",
            file.upstream_paths != schema::UpstreamPaths::default(),
        ),
    ] {
        if is_there {
            let why = "belongs to the policy in version 2: move it there, into a rule set";
            return invalid(field, why);
        }
    }
    let mut names = vec![name("rule_sets.default", &sets.default)?.to_owned()];
    for (index, other) in sets.others.iter().enumerate() {
        let at = format!("rule_sets.others[{index}]");
        if names.contains(other) {
            return invalid(&at, format_args!("`{other}` is listed already"));
        }
        names.push(name(&at, other)?.to_owned());
    }
    if names.len() > MAX_SETS {
        let why = format_args!(
            "has {} entries: give at most {}",
            sets.others.len(),
            MAX_SETS - 1
        );
        return invalid("rule_sets.others", why);
    }
    let by = match &sets.by {
        None => None,
        Some(schema::RouteProperty::RouteName) => Some(By::RouteName),
        Some(schema::RouteProperty::RouteMetadata(place)) => Some(By::Metadata(
            key_components::metadata("rule_sets.by.route_metadata", place)?,
        )),
    };
    let until_rules = file.until_rules.clone().unwrap_or_default();
    Ok(Pushed {
        sets: names,
        by,
        hold: duration("until_rules.hold", &until_rules.hold, 0)?,
        then: until_rules.then,
    })
}

/// For each limit, a list of its windows: quota, and length in milliseconds. Null if they are not known.
type Windows = serde_json::Value;

fn windows_of(limit: &str, windows: &Windows) -> Vec<(u64, u64)> {
    let listed = windows.get(limit).and_then(Windows::as_array);
    let pair = |pair: &Windows| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
    listed.into_iter().flatten().filter_map(pair).collect()
}

/// Validates rules one by one, and makes a set of them.
#[derive(Debug)]
struct Builder {
    reply: schema::Reply,
    upstream: Upstream,
    semicolon: Option<schema::QuerySemicolon>,
    windows: Windows,
    rules: Vec<Rule>,
    counters: Counters,
    memo_slots: usize,
}

impl Builder {
    fn new(
        reply: &Option<schema::Reply>,
        upstream_paths: &schema::UpstreamPaths,
        windows: Windows,
    ) -> Result<Self, ConfigError> {
        let reply = reply.clone().unwrap_or_default();
        replies::validate("reply", &reply)?;
        let (upstream, semicolon) = upstream::validate(upstream_paths);
        Ok(Self {
            reply,
            upstream,
            semicolon,
            windows,
            rules: Vec::new(),
            counters: Counters::new(),
            memo_slots: 0,
        })
    }

    fn add(&mut self, at: &str, file: &schema::Rule) -> Result<(), ConfigError> {
        if self.rules.len() == MAX_RULES {
            return invalid("rules", format_args!("has more than {MAX_RULES} entries"));
        }
        if self.rules.iter().any(|earlier| earlier.name == file.name) {
            let why = format_args!("another rule has the name `{}` already", file.name);
            return invalid(&format!("{at}.name"), why);
        }
        let mut rule = validate_rule(at, file, &self.reply, &self.windows)?;
        rule.matcher = rule.matcher.memoized(&mut self.memo_slots);
        let limits = rule.limits.iter().map(|limit| limit.name.as_str());
        self.counters.add_rule(&rule.name, rule.shadow, limits);
        self.rules.push(rule);
        Ok(())
    }

    /// Adds rules that also pass this check; returns what is wrong with the others.
    #[cfg(feature = "schema")]
    fn add_all(
        &mut self,
        rules: &[schema::Rule],
        check: fn(&str, &schema::Rule) -> Result<(), ConfigError>,
    ) -> Vec<ConfigError> {
        let rules = rules.iter().enumerate().filter_map(|(index, rule)| {
            let at = format!("rules[{index}]");
            check(&at, rule).and_then(|()| self.add(&at, rule)).err()
        });
        rules.collect()
    }

    fn finish(self) -> Result<RuleSet, ConfigError> {
        let (mut parameters, mut methods) = (Vec::new(), Vec::new());
        let rules = self.rules.iter();
        rules.for_each(|rule| rule.names(&mut parameters, &mut methods));
        Ok(RuleSet {
            view_options: ViewOptions {
                upstream: self.upstream,
                semicolon: self.semicolon,
                parameters: ParameterNames::new(parameters),
                methods,
                memo_slots: self.memo_slots,
            },
            counters: self.counters,
            rules: self.rules,
        })
    }
}

fn validate_rule(
    at: &str,
    file: &schema::Rule,
    reply: &schema::Reply,
    windows: &Windows,
) -> Result<Rule, ConfigError> {
    name(&format!("{at}.name"), &file.name)?;
    if file.shadow && file.stop {
        let why = "a rule with `shadow: true` must not affect other rules: remove `stop`";
        return invalid(&format!("{at}.stop"), why);
    }
    let when_unavailable = match file.when_unavailable {
        Some(when) => when,
        None if file.shadow => schema::WhenUnavailable::Allow,
        None => {
            let why = "is missing: set `allow` (cheap to serve unmetered) or `deny` (expensive)";
            return invalid(&format!("{at}.when_unavailable"), why);
        }
    };
    let (matcher, variables) = matching::validate(&format!("{at}.match"), &file.matcher)?;
    let (checks, limits) = checks::validate(&format!("{at}.checks"), &file.checks, &variables)?;
    let limits = limits
        .iter()
        .map(|limit| LimitTexts::new(&file.name, limit, windows_of(limit, windows)));
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

/// A duration of at least so many milliseconds.
fn duration(at: &str, text: &str, least_ms: u128) -> Result<Duration, ConfigError> {
    match humantime::parse_duration(text) {
        Ok(given) if given <= MAX_HOLD && given.as_millis() >= least_ms => Ok(given),
        _ => invalid(
            at,
            format_args!("`{text}` is not a duration between `{least_ms}ms` and `10s`"),
        ),
    }
}
