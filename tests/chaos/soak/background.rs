//! The rules and the requests of wrk: keys that nobody has used before, and one key that is asked for all the time and has
//! leases.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::rules;

/// What a key of its own may have in a window. No other limit of the policy has this quota.
pub const CHURN_QUOTA: u64 = 700;
const CONNECTIONS: &str = "32";

const SCRIPT: &str = r#"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args)
  counts = { [200] = 0, [429] = 0, [503] = 0 }
  others = 0
end
function request()
  if math.random(10) <= 3 then return wrk.format('GET', '/hot', { ['x-client'] = 'one' }) end
  return wrk.format('GET', '/churn', { ['x-client'] = math.random(1000000000) })
end
function response(status)
  if counts[status] then counts[status] = counts[status] + 1 else others = others + 1 end
end
function done(summary, latency)
  local counts, others = { [200] = 0, [429] = 0, [503] = 0 }, 0
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get('counts')) do counts[status] = counts[status] + count end
    others = others + thread:get('others')
  end
  print(string.format('wrk: %.0f requests a second; 200 %d, 429 %d, 503 %d, others %d, closed connections %d, timeouts %d',
    summary.requests / summary.duration * 1e6, counts[200], counts[429], counts[503], others,
    summary.errors.connect + summary.errors.read + summary.errors.write, summary.errors.timeout))
end
"#;

/// The policy of the clients, and wrk's limits.
pub fn policy(store: &str) -> String {
    let own = format!(
        "  churn: {{ algorithm: sliding_log, windows: [{{ quota: {CHURN_QUOTA}, per: 2s }}] }}\n"
    );
    let hot = "  hot: { algorithm: sliding_window, lease: {}, windows: [{ quota: 100000000, per: 10s, precision: 1s }] }\n";
    rules::policy(store) + &own + hot
}

/// Likewise the filter's configuration.
pub fn plugin() -> Value {
    let mut plugin = rules::plugin();
    for name in ["churn", "hot"] {
        plugin["rules"].as_array_mut().expect("a list").push(json!({
            "name": name, "match": { "path": format!("/{name}") }, "when_unavailable": "deny",
            "checks": [{ "limit": name, "key": [{ "header": "x-client", "plain": true }] }],
        }));
    }
    plugin
}

/// wrk, running.
pub struct Background {
    task: JoinHandle<std::io::Result<Output>>,
    _folder: tempfile::TempDir,
}

impl Background {
    pub fn start(port: u16, seconds: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("wrk.lua");
        std::fs::write(&script, SCRIPT).expect("a script");
        let mut wrk = Command::new("wrk");
        wrk.args([
            "-t",
            "1",
            "-c",
            CONNECTIONS,
            "-d",
            &format!("{seconds}s"),
            "-s",
        ]);
        wrk.arg(script).arg(format!("http://127.0.0.1:{port}/"));
        Self {
            task: tokio::task::spawn_blocking(move || wrk.output()),
            _folder: folder,
        }
    }

    /// What it reports when it has ended.
    pub async fn finish(self) -> String {
        let output = self.task.await.expect("wrk is waited for");
        let output = output.expect("wrk runs; install it: tests/setup bench");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("wrk: "));
        line.unwrap_or_else(|| panic!("wrk: {text}")).to_owned()
    }
}
