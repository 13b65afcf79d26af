//! Tests of a whole service, on the embedded store unless a test says otherwise.

mod overrides;
mod past_overrides;
mod start;
mod wall_clock;

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_protocol::read_decisions;
use tempfile::TempDir;

use super::*;
use crate::policy::StoreAddress;

/// A service with this policy, in this store.
fn service_in(address: &StoreAddress, policy: &str) -> Service {
    let folder = tempfile::tempdir().unwrap();
    service_of(&folder, address, policy)
}

/// The same, with a file in this folder.
fn service_of(folder: &TempDir, address: &StoreAddress, policy: &str) -> Service {
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, policy).unwrap();
    let metrics = Metrics::new().unwrap();
    let handle = PolicyHandle::load(&path, None, &metrics).unwrap();
    let store = Store::open(address, Duration::from_secs(1), 1 << 20);
    Service::new(handle, store, metrics)
}

fn service(policy: &str) -> Service {
    service_in(&StoreAddress::Memory, policy)
}

/// The verdict on one decision of these checks.
async fn ask(service: &Service, checks: Value) -> Value {
    let body = json!({"decisions": [{"checks": checks}]}).to_string();
    let asked = read_decisions(body.as_bytes()).unwrap();
    let answer = service.decide(&asked, |_| None).await;
    serde_json::to_value(&answer.verdicts[0]).unwrap()
}

/// A check of limit `l` and key `k`.
fn check(cost: u64) -> Value {
    json!({"limit": "l", "key": "k", "cost": cost})
}
