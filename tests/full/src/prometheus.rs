//! A Prometheus on its own port, configured from `deploy/prometheus/prometheus.yml`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use sluicegate_tests::process::{Process, free_port, repository};

/// Seconds between two scrapes: one second of a test stands for a minute.
pub const SCRAPE_SECONDS: u32 = 1;

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    // Ends it when dropped.
    _process: Process,
    port: u16,
}

/// A query's result for one set of labels.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its labels, the metric's name as `__name__`.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970 and value.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A label's value, empty where it has none.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// The newest value.
    pub fn last(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |point| point.1)
    }
}

impl Prometheus {
    /// Starts one that scrapes these addresses (by the name of the job) every second, with these files of rules.
    ///
    /// # Panics
    /// The configuration has no such job, or it does not become ready.
    pub async fn start(folder: &Path, targets: &[(&str, String)], rules: &[&Path]) -> Self {
        let port = free_port();
        let file = folder.join(format!("prometheus-{port}.json"));
        std::fs::write(&file, config(targets, rules).to_string()).expect("a configuration file");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let data = folder.join(format!("prometheus-{port}"));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        let log = folder.join(format!("prometheus-{port}.log"));
        let install = "install it: tests/setup";
        let mut process = Process::start(&mut command, &log, install);
        let ready = format!("http://127.0.0.1:{port}/-/ready");
        process
            .wait_until("prometheus", async || {
                sluicegate_tests::client::answers(&ready).await
            })
            .await;
        Self {
            _process: process,
            port,
        }
    }

    /// The result of a query at one time, in seconds since 1970.
    pub async fn at(&self, query: &str, time: f64) -> Vec<Series> {
        let time = time.to_string();
        let parameters = [("query", query), ("time", &time)];
        series(&self.ask("query", &parameters).await["result"], "value")
    }

    /// The result of a query for every second between two times.
    pub async fn between(&self, query: &str, from: f64, to: f64) -> Vec<Series> {
        let (from, to, step) = (from.to_string(), to.to_string(), SCRAPE_SECONDS.to_string());
        let parameters = [
            ("query", query),
            ("start", &from),
            ("end", &to),
            ("step", &step),
        ];
        series(
            &self.ask("query_range", &parameters).await["result"],
            "values",
        )
    }

    /// The values of a label on the series that a selector matches.
    pub async fn label_values(&self, label: &str, selector: &str) -> Vec<String> {
        let path = format!("label/{label}/values");
        texts(&self.ask(&path, &[("match[]", selector)]).await)
    }

    /// Names of all metrics.
    pub async fn names(&self) -> Vec<String> {
        texts(&self.ask("label/__name__/values", &[]).await)
    }

    /// Names of the alerts that fire now, one for each set of labels.
    ///
    /// # Panics
    /// It does not answer as documented.
    pub async fn firing(&self) -> Vec<String> {
        let data = self.ask("alerts", &[]).await;
        let alerts = data["alerts"].as_array().expect("a list of alerts").iter();
        alerts
            .filter(|alert| alert["state"] == "firing")
            .map(|alert| text(&alert["labels"]["alertname"]))
            .collect()
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let url = reqwest::Url::parse_with_params(&url, parameters).expect("a URL");
        let (status, body) = sluicegate_tests::client::get(url.as_str()).await;
        assert_eq!(status, 200, "{path} {parameters:?}: {body}");
        let mut answer: Value = serde_json::from_str(&body).expect("JSON");
        answer["data"].take()
    }
}

/// The repository's configuration with these targets, the test's scrape interval, and these rules.
fn config(targets: &[(&str, String)], rules: &[&Path]) -> Value {
    let text = std::fs::read_to_string(repository("deploy/prometheus/prometheus.yml"))
        .expect("deploy/prometheus/prometheus.yml");
    let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
    let pace = format!("{SCRAPE_SECONDS}s");
    config["global"] =
        json!({ "scrape_interval": pace, "evaluation_interval": pace, "scrape_timeout": pace });
    config["rule_files"] = json!(rules);
    let jobs = config["scrape_configs"]
        .as_array_mut()
        .expect("a list of jobs");
    jobs.retain(|job| targets.iter().any(|(name, _)| job["job_name"] == *name));
    assert_eq!(jobs.len(), targets.len(), "jobs other than {targets:?}");
    for (name, address) in targets {
        for job in jobs.iter_mut().filter(|job| job["job_name"] == *name) {
            job["static_configs"] = json!([{ "targets": [address] }]);
        }
    }
    config
}

fn series(result: &Value, field: &str) -> Vec<Series> {
    let all = result.as_array().expect("a list of series").iter();
    all.map(|one| {
        let points = match &one[field] {
            Value::Array(points) if field == "values" => points.iter().map(point).collect(),
            single => vec![point(single)],
        };
        let labels = one["metric"].as_object().expect("labels").iter();
        let labels = labels.map(|(name, value)| (name.clone(), text(value)));
        Series {
            labels: labels.collect(),
            points,
        }
    })
    .collect()
}

fn point(pair: &Value) -> (f64, f64) {
    let time = pair[0].as_f64().expect("a time");
    // Values are strings, as JSON has no NaN.
    (time, text(&pair[1]).parse().expect("a number"))
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(text).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}
