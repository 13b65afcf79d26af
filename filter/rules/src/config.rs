//! The plugin's configuration: read, checked, and made into [`Rules`].
//!
//! | file | for |
//! |---|---|
//! | `written.rs` | how it is written; schema and reference are made from it |
//! | `either.rs` | the fields that may be written in two ways |
//! | `reader.rs` | from JSON to those types, with the field of every mistake |
//! | `strict.rs` | JSON in which no field stands twice |
//! | `structure.rs` | a `google.protobuf.Struct`, which is how Envoy hands YAML over |
//! | `matching.rs`, `checks.rs`, `parts.rs`, `replies.rs`, `upstream.rs` | the checks, by what they are about |
//! | `bounds.rs` | whether one request can have more checks than a decision may have |
//! | `fault.rs` | what is wrong, and what was perhaps meant |

mod bounds;
mod checks;
mod either;
mod fault;
mod matching;
mod parts;
mod reader;
mod replies;
mod strict;
mod structure;
mod upstream;
pub mod written;

use std::time::Duration;

pub use fault::{ConfigError, nearest};

use crate::key::Hasher;
use crate::query::Names;
use crate::reply::LimitTexts;
use crate::rule::{Rule, Rules, WhenUnavailable};
use crate::seen::Reader;
use crate::stats::Counters;
use fault::{fault, misread};

/// The version of this format.
const VERSION: u64 = 1;
/// More rules than anyone can reason about; each has counters in Envoy, which are never freed.
const MAX_RULES: usize = 256;

/// Where the filter asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Envoy's cluster that the sidecar is in.
    pub cluster: String,
    /// How long a request waits for its verdict.
    pub timeout: Duration,
    /// Requests that wait go together in one callout.
    pub together: bool,
    /// The sidecar is told which trace a request belongs to.
    pub traces: bool,
}

/// Reads and checks a configuration: JSON, or a serialized `google.protobuf.Struct`.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn parse(bytes: &[u8]) -> Result<Rules, ConfigError> {
    check(&read(bytes)?)
}

/// Reads a configuration as it is written, without checking what it says.
///
/// # Errors
/// It is not of the right shape.
pub fn read(bytes: &[u8]) -> Result<written::Configuration, ConfigError> {
    if bytes.trim_ascii().is_empty() {
        return fault(
            "configuration",
            "is empty: give at least `sidecar` and `rules`",
        );
    }
    // Both forms go through a value of JSON: the code that reads a configuration then stands in the VM once.
    let value = match structure::read(bytes) {
        Some(value) => value,
        None => strict::read(bytes).or_else(|error| fault("configuration", error))?,
    };
    reader::read(&value).map_err(misread)
}

/// Checks what a configuration says.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn check(file: &written::Configuration) -> Result<Rules, ConfigError> {
    if file.version != VERSION {
        return fault(
            "version",
            format_args!(
                "{} is not a version that this filter reads: it reads {VERSION}",
                file.version
            ),
        );
    }
    let sidecar = Sidecar {
        cluster: not_empty("sidecar.cluster", &file.sidecar.cluster)?.to_owned(),
        timeout: timeout(&file.sidecar.timeout)?,
        together: file.sidecar.together,
        traces: file.sidecar.traces,
    };
    if file.rules.is_empty() || file.rules.len() > MAX_RULES {
        return fault(
            "rules",
            format_args!("has {} entries: give 1 to {MAX_RULES}", file.rules.len()),
        );
    }
    let reply = replies::check("reply", file.reply.as_ref())?;
    let mut rules: Vec<Rule> = Vec::with_capacity(file.rules.len());
    let mut remembered = 0;
    for (index, rule) in file.rules.iter().enumerate() {
        let at = format!("rules[{index}]");
        if rules.iter().any(|earlier| earlier.name == rule.name) {
            return fault(
                &format!("{at}.name"),
                format_args!("`{}` is the name of another rule", rule.name),
            );
        }
        let mut checked = check_rule(&at, rule)?;
        if rule.reply.is_none() {
            checked.reply = reply.clone();
        }
        checked.matcher = checked.matcher.remembering(&mut remembered);
        rules.push(checked);
    }
    let (upstream, semicolon) = upstream::check(&file.upstream_paths);
    let mut parameters: Vec<String> = Vec::new();
    rules
        .iter()
        .for_each(|rule| rule.parameters(&mut parameters));
    let rules = Rules {
        sidecar,
        hasher: Hasher::new(&file.pepper),
        reader: Reader {
            upstream,
            semicolon,
            parameters: Names::new(parameters),
            remembered,
        },
        counters: Counters::new(&rules),
        texts: LimitTexts::of_rules(&rules),
        rules,
    };
    bounds::check(file, &rules)?;
    Ok(rules)
}

fn check_rule(at: &str, file: &written::Rule) -> Result<Rule, ConfigError> {
    name(&format!("{at}.name"), &file.name)?;
    if file.shadow && file.stop {
        return fault(
            &format!("{at}.stop"),
            "a rule with `shadow: true` must not change what other rules do: remove `stop`",
        );
    }
    let when_unavailable = match file.when_unavailable {
        Some(written::WhenUnavailable::Allow) => WhenUnavailable::Allow,
        Some(written::WhenUnavailable::Deny) => WhenUnavailable::Deny,
        None if file.shadow => WhenUnavailable::Allow,
        None => {
            return fault(
                &format!("{at}.when_unavailable"),
                "is missing: say `allow` (cheap to serve unmetered) or `deny` (expensive)",
            );
        }
    };
    let (matcher, variables) = matching::check(&format!("{at}.match"), &file.matcher)?;
    let (checks, limits) = checks::check(&format!("{at}.checks"), &file.checks, &variables)?;
    Ok(Rule {
        name: file.name.clone(),
        matcher,
        checks,
        limits,
        when_unavailable,
        stop: file.stop,
        shadow: file.shadow,
        reply: replies::check(&format!("{at}.reply"), file.reply.as_ref())?,
    })
}

fn timeout(text: &str) -> Result<Duration, ConfigError> {
    match humantime::parse_duration(text) {
        Ok(timeout) if (1..=10_000).contains(&timeout.as_millis()) => Ok(timeout),
        _ => fault(
            "sidecar.timeout",
            format_args!("`{text}` is not a duration between `1ms` and `10s`"),
        ),
    }
}

fn not_empty<'a>(at: &str, text: &'a str) -> Result<&'a str, ConfigError> {
    if text.is_empty() {
        fault(at, "is empty")
    } else {
        Ok(text)
    }
}

/// The name of a rule or limit: it stands in the names of statistics.
fn name<'a>(at: &str, name: &'a str) -> Result<&'a str, ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        return fault(
            at,
            format_args!("`{name}` is not 1 to 64 of the characters a-z A-Z 0-9 - _ ."),
        );
    }
    Ok(name)
}
