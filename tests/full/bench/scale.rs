//! `make bench-scale`: how cost and batches change with connections, Envoy's workers and the number of keys; and the
//! sidecar's memory after a million keys.

use serde_json::json;
use sluicegate_tests_full::report::Report;

use crate::chart::{self, Line};
use crate::fleet;
use crate::load::{self, Sample, median, peak_mb};
use crate::variant::{self, Keys, Scale, Variant};

/// Rounds, and seconds of each measurement.
const ROUNDS: (usize, u32) = (3, 2);
const QUICK: (usize, u32) = (1, 1);
const CONNECTIONS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const WORKERS: [u32; 2] = [1, 2];
const KEYS: [u32; 4] = [1, 100, 10_000, 1_000_000];
/// Connections while the number of keys changes.
const MANY: u32 = 64;
const MILLION: u32 = 1_000_000;

/// One point, the median of its rounds.
struct Point {
    per_second: f64,
    batch: f64,
    cpu_us: f64,
}

impl Point {
    fn of(samples: &[Sample]) -> Self {
        let middle = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
        Self {
            per_second: middle(|s| s.per_second),
            batch: middle(|s| 1_000.0 / s.redis_calls.max(f64::MIN_POSITIVE)),
            cpu_us: middle(|s| s.envoy.cpu_us + s.sidecar.cpu_us + s.redis.cpu_us),
        }
    }

    fn tell(&self, report: &mut Report, name: &str) {
        report.figure(&format!("{name}: requests"), self.per_second, "/s");
        let decisions = format!("{name}: decisions a call of Redis");
        report.figure(&decisions, self.batch, "");
        let all = format!("{name}: all three");
        report.figure(&all, self.cpu_us, "CPU us per request");
    }
}

pub async fn run(quick: bool) {
    let (rounds, seconds) = if quick { QUICK } else { ROUNDS };
    let mut report = Report::default();
    let (mut batches, mut costs) = (Vec::new(), Vec::new());
    for workers in WORKERS {
        let keys = Keys::Uniform(1_000);
        let variant = variant::scale(variant::ADMITTING, Scale { workers, keys }).await;
        let mut points = Vec::new();
        for connections in CONNECTIONS {
            let point = Point::of(&measured(&variant, connections, rounds, seconds).await);
            let plural = if workers == 1 { "" } else { "s" };
            let name = format!("{workers} worker{plural}, {connections} connections");
            point.tell(&mut report, &name);
            points.push((connections, point));
        }
        let line = |pick: fn(&Point) -> f64| {
            let points = points.iter();
            let points = points.map(|(x, point)| (f64::from(*x), pick(point)));
            let (name, points) = (format!("Envoy workers: {workers}"), points.collect());
            Line { name, points }
        };
        batches.push(line(|point| point.batch));
        costs.push(line(|point| point.cpu_us));
        if let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) {
            let name = format!("cost of a request, {workers} worker(s): 512 connections over 1");
            report.at_most(&name, last.cpu_us / first.cpu_us, 1.0);
            let name =
                format!("decisions a call of Redis, {workers} worker(s): 512 connections over 1");
            report.at_least(&name, last.batch / first.batch, 10.0);
        }
    }
    let mixes = KEYS.map(|n| [Keys::Uniform(n), Keys::Zipf(n)]);
    for keys in mixes.into_iter().flatten() {
        let variant = variant::scale(variant::ADMITTING, Scale::of(keys)).await;
        let point = Point::of(&measured(&variant, MANY, rounds, seconds).await);
        point.tell(&mut report, &keys.to_string());
    }
    leases(&mut report, quick).await;
    let name = "the sidecar after a million keys seen once, MB";
    report.at_most(name, after_a_million_keys().await, 30.0);
    report.finish("scale");
    let decisions = "Decisions in one call of Redis, by connections";
    let cpu = "CPU microseconds a request: Envoy, sidecar and Redis, by connections";
    let charts = [(decisions, &batches), (cpu, &costs)];
    chart::lines("target/bench/scale.svg", &charts);
}

/// What leases change: for keys of very different heat, and for a fleet with one hot key.
pub async fn leases(report: &mut Report, quick: bool) {
    let (rounds, seconds) = if quick { QUICK } else { ROUNDS };
    let lines = zipf(report, rounds, seconds).await;
    fleet::run(report, 2 * seconds).await;
    let title = "Requests a second by number of keys (Zipf: the n-th is asked for 1/n as often), 64 connections";
    chart::lines("target/bench/leases.svg", &[(title, &lines)]);
}

/// The Zipf mixes with and without leases, in turns; requests a second by number of keys.
async fn zipf(report: &mut Report, rounds: usize, seconds: u32) -> Vec<Line> {
    let names = [variant::UNLEASED, variant::LEASED];
    let mut lines = names.map(|name| Line {
        name: name.to_owned(),
        points: Vec::new(),
    });
    for keys in KEYS {
        let of_keys = Scale::of(Keys::Zipf(keys));
        let mut samples = names.map(|_| Vec::new());
        let mut variants = Vec::new();
        for name in names {
            variants.push(variant::scale(name, of_keys).await);
        }
        for round in 0..=rounds {
            for (variant, samples) in variants.iter().zip(&mut samples) {
                let sample = load::measure(variant, MANY, seconds).await;
                // The first warms up.
                samples.extend((round > 0).then_some(sample));
            }
        }
        for ((name, samples), line) in names.iter().zip(&samples).zip(&mut lines) {
            let point = Point::of(samples);
            let name = format!("{name}, {}", of_keys.keys);
            point.tell(report, &name);
            let calls = median(samples.iter().map(|s| s.redis_calls));
            report.figure(&format!("{name}: calls of Redis"), calls, "per 1,000");
            let callouts = median(samples.iter().map(|s| s.callouts));
            report.figure(&format!("{name}: callouts"), callouts, "per 1,000");
            line.points.push((f64::from(keys), point.per_second));
        }
    }
    lines.into()
}

async fn measured(variant: &Variant, connections: u32, rounds: usize, seconds: u32) -> Vec<Sample> {
    let mut samples = Vec::new();
    for round in 0..=rounds {
        let sample = load::measure(variant, connections, seconds).await;
        // The first warms up.
        if round > 0 {
            samples.push(sample);
        }
    }
    samples
}

/// Asks for each of a million keys once; returns the sidecar's largest resident size, in MB.
async fn after_a_million_keys() -> f64 {
    const TOGETHER: u32 = 250;
    let scale = Scale::of(Keys::Uniform(1));
    let variant = variant::scale(variant::ADMITTING, scale).await;
    let sidecar = variant.sidecar.as_ref().expect("it is metered");
    for from in (0..MILLION).step_by(TOGETHER as usize) {
        let check = |n| json!({ "limit": "per-key", "key": format!("key-{n}") });
        let decisions = (from..from + TOGETHER).map(|n| json!({ "checks": [check(n)] }));
        let answer = sidecar.answer(decisions.collect()).await.to_string();
        let admitted = answer.matches("\"admitted\"").count();
        assert_eq!(admitted, TOGETHER as usize, "{answer}");
    }
    peak_mb(Some(sidecar.id()))
}
