//! The policy in YAML, and the validation that turns it into the domain's [`Policy`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{OverrideTerms, Whom};
use sluicegate_rules::config::schema::sorted;

use crate::clock::micros;
use crate::json::merge;
use crate::mask::shown;
use crate::yaml::{Node, ValueWithLines, at, fields, get, line_at, line_of};

use super::consumers::{self, Consumers};
use super::contents::{DEFAULT_DENIAL_TTL, DEFAULT_MEMORY_LIMIT, DEFAULT_STORE_TIMEOUT, Policy};
use super::fields::{MAX_NAME_BYTES, duration, is_name};
use super::files::Files;
use super::kept::{Kept, Text};
use super::lease_file::LeaseFile;
use super::limits::{Limit, WhenStoreIsDown};
use super::named_window::NamedWindow;
use super::override_file;
use super::overrides::{MAX_OVERRIDES, Override};
use super::rules::RuleSets;
use super::schemas::takes;
use super::short::{self, Expanded};
use super::store::{OptionsFile, StoreAddress, StoreFile};
use super::window_file::{AlgorithmName, QuotaFromRequest, WindowFile, check_max_quota};
use super::yaml_error;

const MAX_STORE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DENIAL_TTL: Duration = Duration::from_millis(sluicegate_protocol::MAX_HOLD_MS);
/// A smaller limit would not hold the store's tables.
const SMALLEST_MEMORY_LIMIT: usize = 1 << 20;
/// More windows would cost every request, and be too many to reason about.
const MAX_WINDOWS: usize = 8;

/// How long a slot may live without a renewal: filters renew once a second at most, and after a crash it is in use for so long.
const EXPIRE_US: RangeInclusive<u64> = 3_000_000..=MAX_EXPIRE_US;
/// The longest, in microseconds.
pub const MAX_EXPIRE_US: u64 = 86_400_000_000;
const DEFAULT_LONGEST: Duration = Duration::from_hours(24);

/// What is limited and for whom, and where the counts are.
// `sluicegate schema` and errors repeat the comments of the fields of a policy: each says what to give.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Sluicegate's policy")]
struct PolicyFile {
    /// `memory`, the URL of a Redis such as `"redis://HOST:PORT"`, or a mapping with a `url`
    #[serde(default)]
    store: Option<StoreFile>,
    /// a duration such as `20ms`, at most `10s`
    #[serde(default)]
    store_timeout: Option<String>,
    /// a size such as `256MiB`
    #[serde(default)]
    memory_limit: Option<String>,
    /// a duration such as `1s`, from `0s` to `60s`
    #[serde(default)]
    denial_ttl: Option<String>,
    /// a mapping from each limit's name to its fields, such as `per-key: { key: address, rate: 100/1m }`
    limits: BTreeMap<String, LimitFile>,
    /// a mapping from names that rules give as a limit to `pepper`, `keys` and `limits` (docs/consumers.md)
    #[serde(default, deserialize_with = "or_empty")]
    consumers: BTreeMap<String, Consumers>,
    /// a mapping from the name of each rule set to its `rules`
    #[serde(default, deserialize_with = "or_empty")]
    #[schemars(with = "BTreeMap<String, sluicegate_rules::config::schema::RuleSetFile>")]
    rules: BTreeMap<String, Value>,
}

/// Reads a section, which may have nothing in it.
fn or_empty<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LimitFile {
    algorithm: AlgorithmName,
    /// a list of mappings, for example `- { quota: 100, per: 1m }`
    #[schemars(length(min = 1, max = MAX_WINDOWS))]
    windows: Vec<WindowFile>,
    /// `share`, `allow` or `deny`
    #[serde(default)]
    when_store_is_down: WhenStoreIsDown,
    /// `true` or `false`
    #[serde(default)]
    enforce: Option<bool>,
    /// a mapping of `max`, for example `{ max: 5000 }`
    #[serde(default)]
    quota_from_request: Option<QuotaFromRequest>,
    /// a mapping of `longest`, `most` and `from`, for example `{ longest: 100ms }`
    #[serde(default)]
    lease: Option<LeaseFile>,
    /// a duration such as `1h`: for how long a slot of `algorithm: concurrency` is renewed at most
    #[serde(default)]
    longest: Option<String>,
    /// a list of mappings, for example `- { key: KEY, quota: 500 }`
    #[serde(default, deserialize_with = "or_empty")]
    overrides: Vec<OverrideTerms>,
}

impl Policy {
    /// Parses and validates the text of a policy that names no other files.
    ///
    /// # Errors
    /// A message that names line, field and remedy, and never the value of `store`.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text, &mut Files::default())
    }

    /// Reads a policy that may name these files.
    ///
    /// # Errors
    /// As above, the first mistake.
    pub fn read(text: &str, files: &mut Files) -> Result<Self, String> {
        let read = Expanded::read(text, files).and_then(|expanded| expanded.policy());
        read.map_err(|mistakes| mistakes.into_iter().next().unwrap_or_default())
    }
}

impl Expanded {
    /// Expands a policy's text to the long form.
    ///
    /// # Errors
    /// All mistakes in the short form, each with line, field and remedy.
    pub fn read(text: &str, files: &mut Files) -> Result<Self, Vec<String>> {
        short::expand(text, &LONG_SCHEMA, files)
    }

    /// The policy.
    ///
    /// # Errors
    /// The mistakes of all limits and rules, with the lines and fields of the file.
    pub fn policy(&self) -> Result<Policy, Vec<String>> {
        let mut mistakes = Vec::new();
        let Some(long) = &self.long else {
            return Err(mistakes);
        };
        parse(&self.text, long, &mut mistakes).map_err(|first| {
            let all = match mistakes.is_empty() {
                true => vec![first],
                false => mistakes,
            };
            all.iter().map(|mistake| self.named(mistake)).collect()
        })
    }

    /// The entries of a section, by name.
    pub fn section(&self, section: &str) -> BTreeMap<String, ValueWithLines> {
        let section = self.long.iter().filter_map(|long| get(long, section));
        let entries = section.flat_map(fields);
        entries
            .map(|(name, entry)| (name.value.clone(), ValueWithLines::new(entry, 0)))
            .collect()
    }
}

/// The JSON Schema of the long form.
static LONG_SCHEMA: LazyLock<Value> =
    LazyLock::new(|| schemars::schema_for!(PolicyFile).to_value());

/// The JSON Schema of a policy, for editors and pipelines.
pub fn policy_schema() -> Value {
    let mut schema = LONG_SCHEMA.clone();
    merge(&mut schema, &short::SCHEMA);
    sorted(schema)
}

/// Puts the mistakes of limits and rules into `mistakes`, and returns the first of all.
fn parse(text: &str, long: &Node, mistakes: &mut Vec<String>) -> Result<Policy, String> {
    let takes = |field: &str| takes(&LONG_SCHEMA, field);
    if let Some(store) = get(long, "store").filter(|store| !fields(store).is_empty()) {
        // Where a text may stand too, serde does not tell what is wrong with the mapping.
        let _: OptionsFile = yaml_error::read(store, takes)?;
    }
    let file: PolicyFile = yaml_error::read(long, takes)?;
    let line = |path: &[&str]| at(long, path).map_or(1, |node| line_of(node, 0));
    let store = match &file.store {
        None => StoreAddress::default(),
        Some(store) => StoreAddress::try_from(store)
            .map_err(|why| format!("line {}: {why}", line(&["store"])))?,
    };
    let up_to = |most: Duration, text: &str, why_not: &str| match duration(text)? {
        given if given > most => Err(format!("{given:?}: use at most {most:?}, {why_not}")),
        given => Ok(given),
    };
    let at_line = |field, why| format!("line {}: `{field}`: {why}", line(&[field]));
    let store_timeout = file.store_timeout.as_deref().map(|text| {
        let why_not = "for which no request should wait";
        up_to(MAX_STORE_TIMEOUT, text, why_not).map_err(|why| at_line("store_timeout", why))
    });
    let memory_limit = file.memory_limit.as_deref();
    let memory_limit =
        memory_limit.map(|text| bytes(text).map_err(|why| at_line("memory_limit", why)));
    let denial_ttl = file.denial_ttl.as_deref().map(|text| match text {
        // Only `denial_ttl` may be zero: then no denial is cached.
        "0s" => Ok(Duration::ZERO),
        text => up_to(MAX_DENIAL_TTL, text, "or resets take effect too late")
            .map_err(|why| at_line("denial_ttl", why)),
    });
    let overrides = file.limits.values().map(|limit| limit.overrides.len());
    let overrides: usize = overrides.sum();
    if overrides > MAX_OVERRIDES {
        return Err(format!(
            "`overrides`: {overrides} over all limits; the maximum is {MAX_OVERRIDES}: give groups of keys limits of their own"
        ));
    }
    if file.limits.is_empty() {
        return Err("`limits` is empty: name at least one limit".to_owned());
    }
    let mut limits = BTreeMap::new();
    for (name, limit) in &file.limits {
        match check_limit(name, limit) {
            Ok(checked) => drop(limits.insert(name.clone(), Arc::new(checked))),
            Err((path, why)) => {
                let node = at(long, &["limits", name]);
                let line = node.map_or(1, |node| line_at(node, 0, &path));
                let name = shown(name);
                mistakes.push(format!("line {line}: limit {name}: {why}"));
            }
        }
    }
    let names = file.limits.keys().map(String::as_str);
    let by_name = names.map(|name| (name, limits.get(name).map(Arc::as_ref)));
    let mut by_name = by_name.collect();
    let of_entry = |name: &str| line(&["consumers", name]);
    let consumers = consumers::read(&file.consumers, &mut by_name, mistakes, of_entry);
    let of_consumers = |name: &str| file.consumers.contains_key(name);
    let sets = file.rules.keys();
    let sets = sets.filter_map(|name| Some((name.clone(), at(long, &["rules", name])?.clone())));
    let rules = RuleSets::read(&sets.collect(), &by_name, of_consumers).unwrap_or_else(|found| {
        mistakes.extend(found);
        RuleSets::default()
    });
    if let Some(first) = mistakes.first() {
        return Err(first.clone());
    }
    for name in &rules.settled {
        let of_consumers = file.consumers.get(name).map(|entry| entry.limits.values());
        for name in of_consumers.into_iter().flatten().chain([name]) {
            if let Some(limit) = limits.get_mut(name) {
                Arc::make_mut(limit).is_settled = true;
            }
        }
    }
    Ok(Policy {
        text: Text(text.into()),
        rules: Arc::new(rules),
        consumers,
        kept: Kept::default(),
        store,
        store_timeout: store_timeout.transpose()?.unwrap_or(DEFAULT_STORE_TIMEOUT),
        memory_limit: memory_limit.transpose()?.unwrap_or(DEFAULT_MEMORY_LIMIT),
        denial_ttl: denial_ttl.transpose()?.unwrap_or(DEFAULT_DENIAL_TTL),
        limits,
    })
}

/// The field of a limit, or an entry of one, and what is wrong there.
type Fault = (String, String);

fn check_limit(name: &str, file: &LimitFile) -> Result<Limit, Fault> {
    if !is_name(name) {
        return Err((
            String::new(),
            format!("a name consists of 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ ."),
        ));
    }
    if file.windows.is_empty() || file.windows.len() > MAX_WINDOWS {
        return Err((
            String::new(),
            format!(
                "`windows` has {} entries: give 1 to {MAX_WINDOWS}, for example `- {{ quota: 100, per: 1m }}`",
                file.windows.len()
            ),
        ));
    }
    let mut windows = Vec::with_capacity(file.windows.len());
    for (index, window) in file.windows.iter().enumerate() {
        let at = |why| {
            let place = format!("windows[{index}]");
            (place, format!("window {}: {why}", index + 1))
        };
        let spec = window.validate(file.algorithm).map_err(at)?;
        if windows
            .iter()
            .any(|earlier| NamedWindow::of(earlier) == NamedWindow::of(&spec))
        {
            return Err(at(format!(
                "`per` {} occurs twice: keep the tighter of the two windows",
                shown(&window.per)
            )));
        }
        windows.push(spec);
    }
    let nothing = windows.iter().position(|window| window.quota == 0);
    if let (Some(index), 2..) = (nothing, windows.len()) {
        let why = format!(
            "window {}: `quota` is 0, which allows nothing, whatever other windows have: remove it or them",
            index + 1
        );
        return Err((format!("windows[{index}]"), why));
    }
    let longest_us = slots(file, &windows)?;
    let max_requested_quota = file.quota_from_request.as_ref().map(|quota| quota.max);
    let in_field = |field: &str, why| (field.to_owned(), format!("`{field}`: {why}"));
    if let Some(max) = max_requested_quota {
        check_max_quota(max, &windows).map_err(|why| in_field("quota_from_request", why))?;
    }
    let lease = file.lease.as_ref().filter(|_| nothing.is_none());
    let lease = lease.map(|lease| {
        let terms = lease.read(&mut windows, max_requested_quota.is_some());
        terms.map_err(|why| in_field("lease", why))
    });
    let mut limit = Limit {
        name: name.to_owned(),
        windows,
        when_store_is_down: file.when_store_is_down,
        max_requested_quota,
        lease: lease.transpose()?,
        longest_us,
        is_settled: false,
        overrides: BTreeMap::new(),
    };
    limit.overrides = override_file::read(&limit, &file.overrides)?;
    if file.enforce == Some(false) {
        let off = OverrideTerms {
            unlimited: true,
            ..OverrideTerms::default()
        };
        let off = Override::read(off).map_err(|why| (String::new(), why))?;
        limit.overrides.insert(Whom::AllKeys(true), off);
    }
    Ok(limit)
}

/// The bounds of slots; for how long one is renewed at most.
fn slots(file: &LimitFile, windows: &[BucketSpec]) -> Result<u64, Fault> {
    let wrong = |field: &str, why: String| (field.to_owned(), why);
    let Some(first) = windows.first().filter(|first| first.has_slots()) else {
        let why = "`longest` belongs to `algorithm: concurrency` only: remove it";
        return match file.longest {
            Some(_) => Err(wrong("longest", why.to_owned())),
            None => Ok(0),
        };
    };
    if windows.len() > 1 {
        let why = "`algorithm: concurrency` has one window: how many at once, and how long a slot is in use without a sign of its stream";
        return Err(wrong("windows[1]", why.to_owned()));
    }
    if !EXPIRE_US.contains(&first.window_us) {
        let per = file.windows.first().map_or("", |window| &window.per);
        let why = format!(
            "`per` (`expire` in the short form) is {}: give a slot 3s to 24h without a sign of its stream",
            shown(per)
        );
        return Err(wrong("windows[0]", why));
    }
    let longest = match &file.longest {
        None => DEFAULT_LONGEST,
        Some(given) => {
            duration(given).map_err(|why| wrong("longest", format!("`longest`: {why}")))?
        }
    };
    Ok(micros(longest).max(first.window_us))
}

/// Bytes in whole `KiB`, `MiB` or `GiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let read = units.iter().find_map(|(unit, shift)| {
        let number: usize = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(1 << shift)
    });
    read.filter(|bytes| *bytes >= SMALLEST_MEMORY_LIMIT)
        .ok_or_else(|| {
            let shown = shown(text);
            format!("{shown} is not a size of at least 1MiB, such as `256MiB` or `2GiB`")
        })
}

#[cfg(test)]
mod tests;
