//! The rules and the requests of wrk: keys that nobody has used before, and one key that is asked for all the time and has
//! leases.

use std::process::{Command, Output};

use serde_json::json;
use sluicegate_tests::policy::with_sets;
use tokio::task::JoinHandle;

use super::super::rules;

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
    let mut set = rules::rules();
    for name in ["churn", "hot"] {
        set["rules"].as_array_mut().expect("a list").push(json!({
            "name": name, "match": { "path": format!("/{name}") }, "when_unavailable": "deny",
            "checks": [{ "limit": name, "key": [{ "header": "x-client", "plain": true }] }],
        }));
    }
    let limits = rules::policy_of_limits(store) + &own + hot;
    with_sets(&limits, &json!({ "default": set }))
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
        wrk.args(["-t1", "-c", CONNECTIONS, &format!("-d{seconds}s"), "-s"]);
        wrk.arg(script).arg(format!("http://127.0.0.1:{port}/"));
        Self {
            task: tokio::task::spawn_blocking(move || wrk.output()),
            _folder: folder,
        }
    }

    /// What it reports when it has ended.
    pub async fn finish(self) -> Reported {
        let output = self.task.await.expect("wrk is waited for");
        let output = output.expect("wrk runs; install it: tests/setup bench");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("wrk: "));
        let line = line.unwrap_or_else(|| panic!("wrk: {text}")).to_owned();
        Reported { line }
    }
}

/// What wrk reports, in one line.
pub struct Reported {
    pub line: String,
}

impl Reported {
    /// What is wrong, after so many listeners were replaced, which closes their connections; in two seconds every request has
    /// an answer, unless the machine stood still.
    pub fn failures(&self, replaced: u64, stood_still: bool) -> Vec<String> {
        let connections: u64 = CONNECTIONS.parse().expect("a number");
        let timeouts = if stood_still { u64::MAX } else { 0 };
        let bounds = [
            ("others", 0),
            ("closed connections", replaced * connections),
            ("timeouts", timeouts),
        ];
        let found = bounds.into_iter().filter_map(|(what, most)| {
            let count = number(&self.line, what);
            (count > most).then(|| format!("wrk: {count} {what}, of {most}"))
        });
        found.collect()
    }
}

/// The number after these words.
fn number(line: &str, words: &str) -> u64 {
    let rest = line.split_once(words).map_or("", |(_, rest)| rest);
    let digits = rest.split(',').next().unwrap_or_default().trim().parse();
    digits.unwrap_or_else(|_| panic!("{words}: {line}"))
}

#[cfg(test)]
mod tests {
    use super::Reported;

    const LINE: &str = "wrk: 9 requests a second; 200 1, 429 0, 503 2, others 3, closed connections 33, timeouts 5";

    #[test]
    fn what_wrk_reports_is_judged() {
        let line = LINE.to_owned();
        let reported = Reported { line };
        assert_eq!(reported.failures(1, false).len(), 3);
        assert_eq!(reported.failures(2, true).len(), 1, "3 other statuses");
    }
}
