//! One measurement: wrk against an Envoy, and what each process used meanwhile.

use std::process::Command;

use sluicegate_tests::process::status;

use crate::variant::Variant;

/// The result of one run of wrk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub per_second: f64,
    pub median_us: f64,
    pub envoy: Used,
    pub sidecar: Used,
    pub redis: Used,
    /// Per 1,000 requests.
    pub callouts: f64,
    /// Per 1,000 requests.
    pub redis_calls: f64,
}

/// A figure of a run.
pub type Pick = fn(&Sample) -> f64;

/// What a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// Microseconds per request.
    pub cpu_us: f64,
    /// Since it was started.
    pub peak_mb: f64,
}

/// Runs wrk.
///
/// # Panics
/// wrk is not installed, or too many answers have another status than the variant expects.
pub async fn measure(variant: &Variant, connections: u32, seconds: u32) -> Sample {
    let processes = variant.processes();
    let before = processes.map(cpu_seconds);
    let (callouts, calls) = (variant.callouts().await, variant.redis_calls().await);
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "--latency", "-s"]).arg(&variant.script);
    wrk.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    wrk.arg(variant.envoy.url("/"));
    // In a separate thread, since the upstream runs in this runtime.
    let output = tokio::task::spawn_blocking(move || wrk.output()).await;
    let output = output.expect("wrk is waited for");
    let output = output.expect("wrk runs; install it: tests/setup bench");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let reported = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().parse::<f64>().ok());
        let errors = String::from_utf8_lossy(&output.stderr);
        value.unwrap_or_else(|| panic!("wrk reported no {name}:\n{text}{errors}"))
    };
    let requests = reported("requests ");
    let expected = reported("unexpected ") <= requests * variant.may_differ;
    assert!(expected, "{}:\n{text}", variant.name);
    let thousands = requests / 1_000.0;
    let used = |index: usize| Used {
        cpu_us: (cpu_seconds(processes[index]) - before[index]) * 1e6 / requests,
        peak_mb: peak_mb(processes[index]),
    };
    Sample {
        per_second: requests / reported("seconds "),
        median_us: reported("median_us "),
        envoy: used(0),
        sidecar: used(1),
        redis: used(2),
        callouts: (variant.callouts().await - callouts) / thousands,
        redis_calls: (variant.redis_calls().await - calls) / thousands,
    }
}

/// The CPU time that a process has used; 0 without one.
pub fn cpu_seconds(process: Option<u32>) -> f64 {
    // Clock ticks, of which Linux reports 100 per second.
    const TICKS: f64 = 100.0;
    let Some(process) = process else { return 0.0 };
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a running process");
    // After the name, which is in parentheses and may hold anything: fields 14 and 15 are user and system time.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields = fields.split_whitespace().skip(11).take(2);
    let ticks = fields.map(|ticks| ticks.parse::<f64>().expect("ticks"));
    ticks.sum::<f64>() / TICKS
}

/// A process's largest resident size so far.
pub fn peak_mb(process: Option<u32>) -> f64 {
    let Some(process) = process else { return 0.0 };
    status(process, "VmHWM") as f64 / 1_024.0
}

/// The median.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
