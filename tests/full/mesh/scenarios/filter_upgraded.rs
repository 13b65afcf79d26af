//! The filter's next version takes over while requests flow, and none is lost.

use std::time::{Duration, Instant};

use serde_json::Value;
use sluicegate_tests::process::eventually_within;

use super::{BURST, RECOVERS};
use crate::images::FILTER_TAGS;
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLOSED, Counts, Key, new_key};

/// How long requests go on after the change, for what ends late: connections of a replaced listener, the old VM.
const AFTERWARDS: Duration = Duration::from_secs(10);

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    let (before, key) = (modules(mesh), new_key());
    let free = mesh.clients.stream(CLOSED, Key::Own);
    let limited = mesh.clients.stream(CLOSED, key.clone());
    let started = Instant::now();
    mesh.must_upgrade(&format!(r#"filter.image.tag="{}""#, FILTER_TAGS[1]));
    eventually_within(RECOVERS, "both proxies have the new filter", async || {
        let modules = modules(mesh);
        modules.len() == before.len()
            && modules
                .iter()
                .zip(&before)
                .all(|(now, before)| now != before)
    })
    .await;
    let took = started.elapsed();
    tokio::time::sleep(AFTERWARDS).await;
    let (free, streamed) = (free.stop().await, limited.stop().await);
    let mut limited = streamed.counts;
    limited += mesh.clients.burst(CLOSED, &key, BURST).await;

    let mut counts = free.counts.all_ok("each with its own key");
    let exact = Counts::exact(limited.requests(), mesh.quota);
    assert_eq!(limited, exact, "one key");
    counts += limited;
    let note = format!(
        "one key: exactly {}; nothing lost, the longest wait was {:.1} s; seconds from `helm upgrade` until both \
         proxies have the new version",
        mesh.quota,
        free.slowest.max(streamed.slowest).as_secs_f64()
    );
    let scenario = "filter upgraded by its image's tag";
    report.row(mesh, scenario, counts, took, &note);
}

/// Which module each proxy's filter has, as Envoy's configuration says.
fn modules(mesh: &Mesh) -> Vec<String> {
    let modules = mesh.pods().into_iter().map(|pod| {
        let dump = pod.get(mesh.admin_port, "/config_dump");
        let dump = serde_json::from_str(&dump).expect("Envoy prints JSON");
        let mut found = Vec::new();
        find("vm_config", &dump, &mut found);
        assert!(!found.is_empty(), "{} has no filter", pod.name);
        found
            .iter()
            .map(|config| config["code"].to_string())
            .collect()
    });
    modules.collect()
}

/// Finds the values of this name, at any depth.
fn find<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(name));
            fields.values().for_each(|value| find(name, value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| find(name, value, found)),
        _ => {}
    }
}
