//! The policy as it is written in YAML, and the checks that turn it into the domain's [`Policy`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_saphyr::Spanned;
use sluicegate_engine::{Algorithm, BucketSpec};

use super::limits::{
    DEFAULT_DENIAL_TTL, DEFAULT_MEMORY_LIMIT, DEFAULT_STORE_TIMEOUT, Limit, Policy, WhenStoreIsDown,
};
use super::problem::{self, shown};
use super::store::{StoreAddress, StoreFile};

/// Bytes of a limit's name: it is a label of metrics and part of every key in Redis.
const MAX_NAME_BYTES: usize = 64;
const MAX_STORE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DENIAL_TTL: Duration = Duration::from_millis(sluicegate_protocol::MAX_HOLD_MS);
/// Less would not hold the tables of what is counted.
const SMALLEST_MEMORY_LIMIT: usize = 1 << 20;
/// More would make every request pay for windows that nobody can reason about.
const MAX_WINDOWS: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    store: Option<Spanned<StoreFile>>,
    #[serde(default)]
    store_timeout: Option<Spanned<String>>,
    #[serde(default)]
    memory_limit: Option<Spanned<String>>,
    #[serde(default)]
    denial_ttl: Option<Spanned<String>>,
    limits: BTreeMap<String, Spanned<LimitFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFile {
    algorithm: AlgorithmName,
    windows: Vec<Spanned<WindowFile>>,
    #[serde(default)]
    when_store_is_down: WhenStoreIsDown,
}

/// An algorithm as it is named in the file, and to people.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "README describes them")]
pub enum AlgorithmName {
    SlidingLog,
    SlidingWindow,
    FixedWindow,
    TokenBucket,
}

impl From<Algorithm> for AlgorithmName {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow,
            Algorithm::FixedWindow => Self::FixedWindow,
            Algorithm::TokenBucket { .. } => Self::TokenBucket,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowFile {
    quota: u64,
    per: String,
    #[serde(default)]
    precision: Option<String>,
    #[serde(default)]
    burst: Option<u64>,
}

impl Policy {
    /// Checks the text of a policy.
    ///
    /// # Errors
    /// A message that names line, field and remedy, and never the value of `store`.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse(text)
    }
}

fn parse(text: &str) -> Result<Policy, String> {
    // Snippets are lines of the file, and one of them may hold the store's password.
    let options = serde_saphyr::options! { with_snippet: false };
    let file: PolicyFile = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| problem::tell(&error, text))?;
    let store = match &file.store {
        None => StoreAddress::default(),
        Some(store) => StoreAddress::try_from(&store.value)
            .map_err(|why| format!("line {}: {why}", store.referenced.line()))?,
    };
    let set = |field: &str, text: &Option<Spanned<String>>, default| match text {
        None => Ok(default),
        Some(text) => duration(&text.value)
            .map_err(|why| format!("line {}: `{field}`: {why}", text.referenced.line())),
    };
    let store_timeout = set("store_timeout", &file.store_timeout, DEFAULT_STORE_TIMEOUT)?;
    if store_timeout > MAX_STORE_TIMEOUT {
        return Err(format!(
            "`store_timeout` is {store_timeout:?}: use at most {MAX_STORE_TIMEOUT:?}, for which no request should wait"
        ));
    }
    let memory_limit = match &file.memory_limit {
        None => DEFAULT_MEMORY_LIMIT,
        Some(text) => bytes(&text.value)
            .map_err(|why| format!("line {}: `memory_limit`: {why}", text.referenced.line()))?,
    };
    let denial_ttl = match &file.denial_ttl {
        // Zero is not a duration that anything else may have: it holds no denial at all.
        Some(text) if text.value == "0s" => Duration::ZERO,
        text => set("denial_ttl", text, DEFAULT_DENIAL_TTL)?,
    };
    if denial_ttl > MAX_DENIAL_TTL {
        return Err(format!(
            "`denial_ttl` is {denial_ttl:?}: use at most {MAX_DENIAL_TTL:?}, or resets take effect too late"
        ));
    }
    if file.limits.is_empty() {
        return Err("`limits` is empty: name at least one limit".to_owned());
    }
    let mut limits = BTreeMap::new();
    for (name, limit) in &file.limits {
        let checked = check_limit(name, &limit.value).map_err(|(line, why)| {
            let line = line.unwrap_or_else(|| limit.referenced.line());
            format!("line {line}: limit {}: {why}", shown(name, "of this line"))
        })?;
        limits.insert(name.clone(), Arc::new(checked));
    }
    Ok(Policy {
        store,
        store_timeout,
        memory_limit,
        denial_ttl,
        limits,
    })
}

/// The error's line where it is known to be another than the limit's own.
type Fault = (Option<u64>, String);

fn check_limit(name: &str, file: &LimitFile) -> Result<Limit, Fault> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        return Err((
            None,
            format!("a name has 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ ."),
        ));
    }
    if file.windows.is_empty() || file.windows.len() > MAX_WINDOWS {
        return Err((
            None,
            format!(
                "`windows` has {} entries: give 1 to {MAX_WINDOWS}, for example `- {{ quota: 100, per: 1m }}`",
                file.windows.len()
            ),
        ));
    }
    let mut windows = Vec::with_capacity(file.windows.len());
    for (index, window) in file.windows.iter().enumerate() {
        let at = |why| {
            (
                Some(window.referenced.line()),
                format!("window {}: {why}", index + 1),
            )
        };
        let spec = check_window(file.algorithm, &window.value).map_err(at)?;
        if windows
            .iter()
            .any(|earlier: &BucketSpec| earlier.window_us == spec.window_us)
        {
            return Err(at(format!(
                "`per` {} stands twice: keep the tighter of the two windows",
                shown(&window.value.per, "of this length")
            )));
        }
        windows.push(spec);
    }
    Ok(Limit {
        name: name.to_owned(),
        windows,
        when_store_is_down: file.when_store_is_down,
    })
}

fn check_window(algorithm: AlgorithmName, file: &WindowFile) -> Result<BucketSpec, String> {
    let window = duration(&file.per).map_err(|why| format!("`per`: {why}"))?;
    if file.precision.is_some() && algorithm != AlgorithmName::SlidingWindow {
        return Err(
            "`precision` belongs to `algorithm: sliding_window` only: remove it".to_owned(),
        );
    }
    if file.burst.is_some() && algorithm != AlgorithmName::TokenBucket {
        return Err("`burst` belongs to `algorithm: token_bucket` only: remove it".to_owned());
    }
    let spec = BucketSpec {
        algorithm: match algorithm {
            AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            AlgorithmName::FixedWindow => Algorithm::FixedWindow,
            AlgorithmName::TokenBucket => Algorithm::TokenBucket {
                burst: file.burst.unwrap_or(file.quota),
            },
            AlgorithmName::SlidingWindow => Algorithm::SlidingWindow {
                precision_us: match &file.precision {
                    Some(text) => {
                        micros(duration(text).map_err(|why| format!("`precision`: {why}"))?)
                    }
                    None => default_precision_us(micros(window)),
                },
            },
        },
        limit: file.quota,
        window_us: micros(window),
    };
    spec.check().map_err(|error| {
        // The engine's words for them are not the file's.
        let (field, unit) = match error.field {
            "limit" => ("quota", ""),
            "window" => ("per", "us"),
            "precision" => ("precision", "us"),
            field => (field, ""),
        };
        format!("`{field}` is {}{unit}: {}", error.value, error.remedy)
    })?;
    Ok(spec)
}

/// A sixtieth of the window (a minute's is a second), but not under a millisecond.
fn default_precision_us(window_us: u64) -> u64 {
    (window_us / 60).max(1_000)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn duration(text: &str) -> Result<Duration, String> {
    let shown = shown(text, "the text given");
    // The cause is not told: it has words of the text.
    let duration = humantime::parse_duration(text)
        .map_err(|_| format!("{shown} is not a duration such as `10s`, `1m` or `24h`"))?;
    if duration < Duration::from_millis(1) || duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!(
            "{shown} is not a whole number of milliseconds, at least 1ms"
        ));
    }
    Ok(duration)
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
            let shown = shown(text, "the text given");
            format!("{shown} is not a size of at least 1MiB, such as `256MiB` or `2GiB`")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
limits:
  per-key:
    algorithm: sliding_log
    windows:
      - { quota: 10, per: 1s }
      - { quota: 120, per: 1m }
";

    #[test]
    fn the_smallest_policy_keeps_its_state_in_memory() {
        let policy = parse(GOOD).unwrap();
        assert_eq!(policy.store, StoreAddress::Memory);
        assert_eq!(policy.store_timeout, DEFAULT_STORE_TIMEOUT);
        let limit = policy.limit("per-key").unwrap();
        assert_eq!(limit.windows[1].limit, 120);
        assert_eq!(limit.windows[1].window_us, 60_000_000);
    }

    #[test]
    fn s27_store_timeout_is_bounded() {
        let with = |timeout: &str| parse(&format!("store_timeout: {timeout}\n{GOOD}"));
        for timeout in ["1y", "11s", "10001ms"] {
            let message = with(timeout).unwrap_err();
            assert!(message.contains("`store_timeout`") && message.contains("10s"));
        }
        assert!(with("10s").is_ok());
    }

    #[test]
    fn a_mapping_says_where_redis_is_and_how_to_talk_to_it() {
        let text = "
store:
  url: rediss+sentinel://a,b:1/main/2
  username_file: u
  password_file: p
  tls: { ca: ca.pem, certificate: c.pem, key: k.pem, server_name: redis.internal }
  key_prefix: edge/
  connections: 16
  sentinel: { password_file: s }
";
        let policy = parse(&format!("{text}{GOOD}")).unwrap();
        let StoreAddress::Redis(redis) = &policy.store else {
            panic!("{:?}", policy.store)
        };
        assert_eq!(redis.options.key_prefix, "edge/");
        assert_eq!(redis.options.connections, 16);
        assert_eq!(
            redis.options.tls.server_name.as_deref(),
            Some("redis.internal")
        );
        assert_eq!(redis.url.database, 2);
        // Another URL keeps the options, and has to go with them.
        let other = policy.store.with_url("rediss+sentinel://c/other").unwrap();
        assert!(matches!(other, StoreAddress::Redis(other) if other.options == redis.options));
        let why = policy.store.with_url("redis://c").unwrap_err();
        assert!(
            why.contains("`redis+sentinel://`") && why.contains("sentinel"),
            "{why}"
        );
        assert_eq!(policy.store.with_url("memory"), Ok(StoreAddress::Memory));
    }

    #[test]
    fn a_broken_policy_is_refused_with_line_field_and_remedy() {
        let cases: [(&str, &str, &[&str]); 15] = [
            ("quota: 10,", "qouta: 10,", &["line 6", "qouta", "`quota`"]),
            (
                "sliding_log",
                "sliding-log",
                &["sliding-log", "sliding_log"],
            ),
            (
                "per: 1m",
                "per: 1 fortnight",
                &["line 7", "`per-key`", "window 2", "`per`", "fortnight"],
            ),
            ("per: 1m", "per: 10us", &["line 7", "10us", "at least 1ms"]),
            ("per: 1m", "per: 1s", &["line 7", "stands twice"]),
            ("quota: 120", "quota: 0", &["line 7", "window 2", "0"]),
            ("quota: 120", "quota: -1", &["line 7", "`quota`", "-1"]),
            (
                "quota: 120",
                "quota: 120, burst: 5",
                &["line 7", "`burst`", "token_bucket"],
            ),
            (
                "quota: 120",
                "quota: 120, precision: 1s",
                &["line 7", "`precision`", "sliding_window"],
            ),
            ("per-key", "per key", &["line 4", "`per key`"]),
            (
                "limits:",
                "store: rediss//:hunter2@h\nlimits:",
                &["`store`", "redis://"],
            ),
            (
                "limits:",
                "store_timeout: soon\nlimits:",
                &["line 2", "`store_timeout`", "soon"],
            ),
            (
                "limits:",
                "memory_limit: 10kB\nlimits:",
                &["line 2", "`memory_limit`", "10kB", "256MiB"],
            ),
            ("limits:", "limit:", &["line 2", "`limits`"]),
            (
                "limits:",
                "limits: {}\nstore_timeout: 1s\nx:",
                &["line 4", "not a field", "`limits`"],
            ),
        ];
        for (from, to, named) in cases {
            let message = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            for name in named {
                assert!(
                    message.contains(name),
                    "{from} -> {to}: no {name:?} in {message}"
                );
            }
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
