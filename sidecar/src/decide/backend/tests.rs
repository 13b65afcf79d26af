//! Who decides on a key of which admissions are owed to a store that is up again.

use std::time::Duration;

use sluicegate_engine::FleetPosition;
use sluicegate_protocol::{Check, Decision as Asked, Problem};

use super::*;
use crate::decide::overrides::Overrides;
use crate::decide::plan::Basis;
use crate::policy::{Policy, StoreAddress};
use crate::telemetry::events::EventLog;
use crate::telemetry::metrics::Metrics;

const POLICY: &str =
    "limits: { l: { algorithm: sliding_log, windows: [{ quota: 100, per: 1h }] } }";

fn backend() -> Backend {
    let store = Store::open(&StoreAddress::Memory, Duration::from_millis(50), 1 << 20);
    let store = Arc::new(store);
    let metrics = Arc::new(Metrics::new().unwrap());
    let batcher = Batcher::start(Arc::clone(&store), metrics, Arc::<EventLog>::default());
    let outage = Outage::new(1 << 20);
    outage.settle(FleetPosition { rank: 0, of: 1 });
    Backend::new(store, batcher, outage, "me".to_owned())
}

/// A decision for each of these keys.
fn asked(keys: &[&str]) -> Vec<Result<Asked<'static>, Problem>> {
    let asked = |key: &&str| {
        Ok(Asked {
            checks: vec![Check {
                limit: "l".into(),
                key: (*key).to_owned().into(),
                cost: 1,
                quota: None,
                within_ms: None,
                most: None,
            }],
            peek: false,
            receipt: false,
            shadow: None,
            traceparent: None,
        })
    };
    keys.iter().map(asked).collect()
}

/// By the share there would be one more to write back, and for busy keys that would never end.
#[tokio::test]
async fn owed_keys_wait_for_the_write_back_and_then_the_store_decides() {
    let policy = Policy::parse(POLICY).unwrap();
    let overrides = Overrides::default();
    let basis = Basis::of(&policy, overrides.at(0));
    let asked = asked(&["owed", "free"]);
    let (backend, plan) = (backend(), Plan::new(basis, &asked));
    let batch = &plan.batch;
    let outage = &backend.outage;
    let outcome = outage.decide(&backend.store, batch, &batch.decisions[0], &[0]);
    assert!(outcome.unwrap().admitted);
    let began = Instant::now();
    let (outcomes, fallbacks) = backend.decide(&plan, None).await;
    assert!(began.elapsed() >= backend.store.timeout() / 2 && fallbacks.is_empty());
    assert_eq!(outcomes[0].as_ref().unwrap().remaining, 99);
    assert_eq!(outage.pending(), 1, "no share was asked");
    let in_advance = async || backend.take_in_advance(Arc::clone(batch)).await;
    assert_eq!(in_advance().await, [None, None]);
    let written = async {
        while outage.pending() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = backend.write_back() => {}
        () = written => {}
    }
    let (outcomes, fallbacks) = backend.decide(&plan, None).await;
    assert!(outcomes.iter().all(Option::is_some) && fallbacks.is_empty());
    assert!(in_advance().await.iter().all(Option::is_some));
}

/// The store does not know yet what others have admitted, so that units of it could be taken a second time.
#[tokio::test]
async fn nothing_is_taken_in_advance_while_others_may_still_report_what_they_admitted() {
    let backend = backend();
    for (of, may_take) in [(1, true), (2, false)] {
        backend.outage.settle(FleetPosition { rank: 0, of });
        backend.outage.note_away(&backend.store);
        assert_eq!(backend.advance_clock_us("k").is_some(), may_take, "{of}");
    }
}
