//! The variants to measure: Envoys with and without the filter, each with the parts that it needs.

use std::path::PathBuf;

use serde_json::{Value, json};
use sluicegate_tests::envoy::{Envoy, MANAGER, SIDECAR, at};
use sluicegate_tests::policy::{Policy, with_rules};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tempfile::TempDir;

use crate::module;

pub const NONE: &str = "no filter";
pub const NOTHING: &str = "a wasm filter that does nothing";
pub const ADMITTING: &str = "admitting, on Redis";
pub const EMBEDDED: &str = "admitting, on the embedded store";
/// Ten hot keys of a limit with leases.
pub const LEASED: &str = "admitting, from leases";
/// The same limit without leases, to compare with.
pub const UNLEASED: &str = "admitting, the same limit without leases";
pub const SOCKET: &str = "admitting, over a Unix socket";
pub const EACH: &str = "admitting, a callout each";
pub const DENYING: &str = "denying";
pub const FLOOR: &str = "a wasm filter that always denies";
pub const LOCAL: &str = "local_ratelimit denying";
/// With the filter that `SLUICEGATE_BEFORE` names and the sidecar that `SLUICEGATE_BEFORE_SIDECAR` names: an earlier
/// build to compare with, in the same run.
pub const ADMITTING_BEFORE: &str = "admitting, on Redis, before";
pub const DENYING_BEFORE: &str = "denying, before";

/// The file of an earlier build that a variable names, if the variant is of that build.
fn before(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).filter(|_| name.ends_with(", before"));
    named.map(PathBuf::from)
}

/// One thing to be measured.
pub struct Variant {
    pub name: &'static str,
    pub envoy: Envoy,
    pub sidecar: Option<Sidecar>,
    pub redis: Option<Redis>,
    /// What wrk runs.
    pub script: PathBuf,
    /// Fraction of the answers that may have another status than expected: an abusive client's first request is admitted.
    pub may_differ: f64,
    _folder: TempDir,
}

impl Variant {
    /// Envoy, sidecar, Redis.
    pub fn processes(&self) -> [Option<u32>; 3] {
        let sidecar = self.sidecar.as_ref().map(Sidecar::id);
        let redis = self.redis.as_ref().map(Redis::id);
        [Some(self.envoy.id()), sidecar, redis]
    }

    /// Callouts so far.
    pub async fn callouts(&self) -> f64 {
        let name = "cluster.sluicegate.upstream_rq_total";
        self.envoy.stat(name).await as f64
    }

    /// Calls of Redis so far: decisions, leases and what they return.
    pub async fn redis_calls(&self) -> f64 {
        match &self.redis {
            Some(redis) => redis.script_calls().await as f64,
            None => 0.0,
        }
    }
}

/// Starts the variants whose names contain one of `wanted`, or all if it is empty.
pub async fn started(wanted: &[String]) -> Vec<Variant> {
    let upstream = upstream::start().await;
    let mut variants = Vec::new();
    let names = [
        NONE, NOTHING, ADMITTING, LEASED, SOCKET, EMBEDDED, EACH, DENYING, FLOOR, LOCAL,
    ];
    for name in names {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part)) {
            let keys = if name == LEASED { 10 } else { 1_000 };
            let scale = Scale::of(Keys::Uniform(keys));
            variants.push(start(name, upstream, scale).await);
        }
    }
    variants
}

/// The subjects of the requests.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// This many, each equally often.
    Uniform(u32),
    /// This many, the n-th with a frequency proportional to 1/n.
    Zipf(u32),
}

impl std::fmt::Display for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform(keys) => write!(f, "{keys} keys, uniform"),
            Self::Zipf(keys) => write!(f, "{keys} keys, Zipf"),
        }
    }
}

/// Its size.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Envoy's.
    pub workers: u32,
    pub keys: Keys,
}

impl Scale {
    /// One worker.
    pub const fn of(keys: Keys) -> Self {
        Self { workers: 1, keys }
    }
}

/// A chain of this size, with an upstream of its own.
pub async fn scale(name: &'static str, scale: Scale) -> Variant {
    start(name, upstream::start().await, scale).await
}

async fn start(name: &'static str, upstream: u16, scale: Scale) -> Variant {
    let folder = tempfile::tempdir().expect("a folder");
    let metered = ![NONE, NOTHING, FLOOR, LOCAL].contains(&name);
    let redis = if metered && name != EMBEDDED {
        Some(Redis::start().await)
    } else {
        None
    };
    let socket = folder.path().join("decisions.sock");
    let denying = [DENYING, DENYING_BEFORE, FLOOR, LOCAL].contains(&name);
    let quota = if denying { 1 } else { 1_000_000_000 };
    let sidecar = if metered {
        let store = redis.as_ref().map_or("memory".to_owned(), Redis::url);
        let (algorithm, per, lease) = match name {
            // With steps of a second.
            LEASED => ("sliding_window", "60s", ", lease: {}"),
            UNLEASED => ("sliding_window", "60s", ""),
            _ => ("sliding_log", "10s", ""),
        };
        let windows = format!("windows: [{{ quota: {quota}, per: {per} }}]");
        let limit = format!("algorithm: {algorithm}, {windows}{lease}");
        let policy = Policy::on(store).timeout("1s").limit("per-key", &limit);
        let policy = with_rules(&policy.text(), &rules());
        let mut sidecar = Sidecar::with(&policy);
        if name == SOCKET {
            sidecar = sidecar.socket(&socket);
        }
        if let Some(before) = before("SLUICEGATE_BEFORE_SIDECAR", name) {
            sidecar = sidecar.program(&before);
        }
        Some(sidecar.start(folder.path()).await)
    } else {
        None
    };
    let port = sidecar.as_ref().map_or(upstream, |sidecar| sidecar.port);
    let other = folder.path().join("other.wasm");
    let earlier = before("SLUICEGATE_BEFORE", name);
    let written = match &earlier {
        Some(earlier) => std::fs::read(earlier).expect("SLUICEGATE_BEFORE names a file"),
        None if name == FLOOR => module::denies(),
        None => module::does_nothing(),
    };
    std::fs::write(&other, written).expect("a file");
    let edit = |config: &mut Value| {
        if name == SOCKET {
            *at(config, SIDECAR) = json!({ "pipe": { "path": socket } });
        }
        // An access log would add to every variant's time without being part of the comparison.
        let manager = at(config, MANAGER).as_object_mut().expect("an object");
        drop(manager.remove("access_log"));
        let filters = at(config, &format!("{MANAGER}/http_filters"));
        match name {
            NONE => drop(filters.as_array_mut().expect("a list").remove(0)),
            _ if [NOTHING, FLOOR].contains(&name) || earlier.is_some() => {
                let code = &mut filters[0]["typed_config"]["config"]["vm_config"]["code"];
                code["local"]["filename"] = json!(other);
            }
            LOCAL => filters[0] = local_ratelimit(1),
            _ => {}
        }
    };
    let envoy = Envoy::asking(port).upstream(upstream).plugin(plugin(name));
    let envoy = envoy.workers(scale.workers).patch(edit);
    let envoy = envoy.start(folder.path()).await;
    let (status, keys, may_differ) = match denying {
        true => (429, Keys::Uniform(1), 0.01),
        false => (200, scale.keys, 0.0),
    };
    let script = folder.path().join("wrk.lua");
    std::fs::write(&script, wrk(status, keys)).expect("a script");
    Variant {
        name,
        envoy,
        sidecar,
        redis,
        script,
        may_differ,
        _folder: folder,
    }
}

fn plugin(name: &str) -> Value {
    json!({
        "version": 2,
        "sidecar": { "cluster": "sluicegate", "timeout": "2s", "together": name != EACH },
        "rule_sets": { "default": "s" },
    })
}

fn rules() -> Value {
    json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }] }],
        "when_unavailable": "deny",
        "reply": { "headers": "both" },
    }])
}

/// Envoy's own limiter, which knows only its own process: so many tokens a day.
pub fn local_ratelimit(tokens: u32) -> Value {
    let always = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "local",
            "token_bucket": { "max_tokens": tokens, "tokens_per_fill": 1, "fill_interval": "86400s" },
            "filter_enabled": always,
            "filter_enforced": always,
        },
    })
}

/// Requests of subjects chosen at random; counts answers with another status than expected.
fn wrk(status: u16, keys: Keys) -> String {
    // The logarithm of a Zipf rank is spread evenly.
    let chosen = match keys {
        Keys::Uniform(keys) => format!("math.random({keys})"),
        Keys::Zipf(keys) => format!("math.floor(math.exp(math.random() * math.log({keys} + 1)))"),
    };
    format!(
        r#"local threads = {{}}
function setup(thread) table.insert(threads, thread) end
function init(args)
  unexpected = 0
  local before, after = wrk.format('GET', '/', {{ ['x-api-key'] = 'key-@' }}):match('^(.*)@(.*)$')
  head, tail = before, after
end
function request() return head .. {chosen} .. tail end
function response(status) if status ~= {status} then unexpected = unexpected + 1 end end
function done(summary, latency)
  local unexpected = summary.errors.connect + summary.errors.read + summary.errors.timeout
  for _, thread in ipairs(threads) do unexpected = unexpected + thread:get('unexpected') end
  print('requests ' .. summary.requests)
  print('seconds ' .. summary.duration / 1e6)
  print('median_us ' .. latency:percentile(50))
  print('unexpected ' .. unexpected)
end
"#
    )
}
