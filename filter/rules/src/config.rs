//! The plugin's configuration as it is written, and the checks that turn it into [`Rules`].
//!
//! It comes as JSON, or as the protobuf that Envoy makes of a `google.protobuf.Struct`: see `config/structure.rs`.

mod structure;

use std::time::Duration;

use serde::Deserialize;

use crate::address::{Mask, Source};
use crate::key::Hasher;
use crate::rule::{CheckRule, Matcher, Part, Rule, Rules, WhenMissing, WhenUnavailable};

/// How long a request waits for its verdict unless the configuration says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);
/// A rule's checks travel together; the wire has a bound on them too.
const MAX_CHECKS: usize = 8;
/// Parts of one key.
const MAX_PARTS: usize = 8;

/// Where the filter asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Envoy's cluster that the sidecar is in.
    pub cluster: String,
    /// How long a request waits for its verdict.
    pub timeout: Duration,
}

/// A configuration that cannot be used: field, value and remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    sidecar: SidecarFile,
    #[serde(default)]
    pepper: String,
    rules: Vec<RuleFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SidecarFile {
    cluster: String,
    #[serde(default)]
    timeout: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    name: String,
    #[serde(default, rename = "match")]
    matcher: MatcherFile,
    checks: Vec<CheckFile>,
    when_unavailable: WhenUnavailableFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatcherFile {
    #[serde(default)]
    path_prefix: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckFile {
    limit: String,
    key: Vec<PartFile>,
    #[serde(default)]
    cost: Option<u64>,
    #[serde(default)]
    when_missing: WhenMissingFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartFile {
    #[serde(default)]
    header: Option<String>,
    #[serde(default)]
    address: Option<AddressFile>,
    #[serde(default)]
    path: Option<bool>,
    #[serde(default)]
    constant: Option<String>,
    #[serde(default)]
    plain: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressFile {
    #[serde(default)]
    trusted_hops: Option<usize>,
    #[serde(default)]
    ipv4_bits: Option<u8>,
    #[serde(default)]
    ipv6_bits: Option<u8>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WhenUnavailableFile {
    Allow,
    Deny,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WhenMissingFile {
    #[default]
    Skip,
    Deny,
    Use(String),
}

/// Reads and checks a configuration: JSON, or a serialized `google.protobuf.Struct`.
///
/// # Errors
/// The first thing that is wrong, with field, value and remedy.
pub fn parse(bytes: &[u8]) -> Result<Rules, ConfigError> {
    let file: ConfigFile = match structure::read(bytes) {
        Some(value) => serde_path_to_error::deserialize(value),
        None => serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(bytes)),
    }
    .map_err(|error| ConfigError(format!("`{}`: {}", error.path(), error.inner())))?;
    let sidecar = Sidecar {
        cluster: not_empty("sidecar.cluster", file.sidecar.cluster)?,
        timeout: timeout(file.sidecar.timeout.as_deref())?,
    };
    if file.rules.is_empty() {
        return fault(
            "rules",
            "is empty: give at least one rule, or take the filter out",
        );
    }
    let mut rules = Vec::with_capacity(file.rules.len());
    for (index, rule) in file.rules.into_iter().enumerate() {
        rules.push(check_rule(&format!("rules[{index}]"), rule)?);
    }
    Ok(Rules {
        sidecar,
        hasher: Hasher::new(&file.pepper),
        rules,
    })
}

fn check_rule(at: &str, file: RuleFile) -> Result<Rule, ConfigError> {
    not_empty(&format!("{at}.name"), file.name)?;
    if let Some(prefix) = &file.matcher.path_prefix
        && !prefix.starts_with('/')
    {
        return fault(
            &format!("{at}.match.path_prefix"),
            format_args!("`{prefix}` does not begin with `/`"),
        );
    }
    for (index, method) in file.matcher.methods.iter().enumerate() {
        if method.is_empty()
            || !method
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'-')
        {
            return fault(
                &format!("{at}.match.methods[{index}]"),
                format_args!("`{method}` is not a method in capitals such as `GET`"),
            );
        }
    }
    if file.checks.is_empty() || file.checks.len() > MAX_CHECKS {
        return fault(
            &format!("{at}.checks"),
            format_args!("has {} entries: give 1 to {MAX_CHECKS}", file.checks.len()),
        );
    }
    let mut checks = Vec::with_capacity(file.checks.len());
    for (index, check) in file.checks.into_iter().enumerate() {
        checks.push(check_check(&format!("{at}.checks[{index}]"), check)?);
    }
    Ok(Rule {
        matcher: Matcher {
            path_prefix: file.matcher.path_prefix,
            methods: file.matcher.methods,
        },
        checks,
        when_unavailable: match file.when_unavailable {
            WhenUnavailableFile::Allow => WhenUnavailable::Allow,
            WhenUnavailableFile::Deny => WhenUnavailable::Deny,
        },
    })
}

fn check_check(at: &str, file: CheckFile) -> Result<CheckRule, ConfigError> {
    let limit = not_empty(&format!("{at}.limit"), file.limit)?;
    if file.key.is_empty() || file.key.len() > MAX_PARTS {
        return fault(
            &format!("{at}.key"),
            format_args!(
                "has {} parts: give 1 to {MAX_PARTS}; one allowance for everyone is `[{{constant: everyone}}]`",
                file.key.len()
            ),
        );
    }
    let mut parts = Vec::with_capacity(file.key.len());
    for (index, part) in file.key.into_iter().enumerate() {
        parts.push(check_part(&format!("{at}.key[{index}]"), part)?);
    }
    Ok(CheckRule {
        limit,
        parts,
        cost: match file.cost {
            None => 1,
            Some(cost @ 1..=sluicegate_protocol::MAX_COST) => cost,
            Some(cost) => {
                return fault(
                    &format!("{at}.cost"),
                    format_args!(
                        "{cost} is not between 1 and {}",
                        sluicegate_protocol::MAX_COST
                    ),
                );
            }
        },
        when_missing: match file.when_missing {
            WhenMissingFile::Skip => WhenMissing::Skip,
            WhenMissingFile::Deny => WhenMissing::Deny,
            WhenMissingFile::Use(constant) => {
                WhenMissing::Use(not_empty(&format!("{at}.when_missing.use"), constant)?)
            }
        },
    })
}

fn check_part(at: &str, file: PartFile) -> Result<Part, ConfigError> {
    let plain = file.plain;
    if plain && file.header.is_none() {
        return fault(
            &format!("{at}.plain"),
            "belongs to `header` only: every other part is plain anyway",
        );
    }
    let part = match (file.header, file.address, file.path, file.constant) {
        (Some(name), None, None, None) => Part::Header {
            name: header_name(&format!("{at}.header"), &name)?,
            plain,
        },
        (None, Some(address), None, None) => check_address(&format!("{at}.address"), &address)?,
        (None, None, Some(true), None) => Part::Path,
        (None, None, None, Some(value)) => {
            Part::Constant(not_empty(&format!("{at}.constant"), value)?)
        }
        _ => {
            return fault(
                at,
                "is not exactly one of `header: NAME`, `address: {}`, `path: true` and `constant: TEXT`",
            );
        }
    };
    Ok(part)
}

fn check_address(at: &str, file: &AddressFile) -> Result<Part, ConfigError> {
    let source = match file.trusted_hops {
        None => Source::Peer,
        Some(0) => {
            return fault(
                &format!("{at}.trusted_hops"),
                "0 trusts no proxy: leave it out to use the peer's address",
            );
        }
        Some(hops) => Source::TrustedHops(hops),
    };
    let bits = |field, given: Option<u8>, default, most| match given {
        Some(bits) if bits > most => fault(
            &format!("{at}.{field}"),
            format_args!("{bits} is more than an address has ({most})"),
        ),
        given => Ok(given.unwrap_or(default)),
    };
    let default = Mask::default();
    let mask = Mask {
        ipv4: bits("ipv4_bits", file.ipv4_bits, default.ipv4, 32)?,
        ipv6: bits("ipv6_bits", file.ipv6_bits, default.ipv6, 128)?,
    };
    Ok(Part::Address { source, mask })
}

/// Header names are matched in lower case, as Envoy keeps them.
fn header_name(at: &str, name: &str) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.trim_start_matches(':').bytes().all(token) {
        return fault(at, format_args!("`{name}` is not the name of a header"));
    }
    Ok(name.to_ascii_lowercase())
}

fn timeout(text: Option<&str>) -> Result<Duration, ConfigError> {
    let Some(text) = text else {
        return Ok(DEFAULT_TIMEOUT);
    };
    match humantime::parse_duration(text) {
        Ok(timeout) if (1..=10_000).contains(&timeout.as_millis()) => Ok(timeout),
        _ => fault(
            "sidecar.timeout",
            format_args!("`{text}` is not a duration between `1ms` and `10s`"),
        ),
    }
}

fn not_empty(at: &str, text: String) -> Result<String, ConfigError> {
    if text.is_empty() {
        fault(at, "is empty")
    } else {
        Ok(text)
    }
}

fn fault<T>(field: &str, why: impl std::fmt::Display) -> Result<T, ConfigError> {
    Err(ConfigError(format!("`{field}`: {why}")))
}
