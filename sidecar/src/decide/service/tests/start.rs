//! What a sidecar that has just started decides.

use super::*;

const POLICY: &str = "
limits:
  l:
    algorithm: sliding_log
    windows: [{ quota: 5, per: 1h }]
    when_store_is_down: allow
    overrides: [{ key: free, unlimited: true }]
";

/// A service that has not read that its store blocks both keys.
async fn blocked() -> Service {
    let service = service(POLICY);
    for key in ["k", "free"] {
        let terms = serde_json::from_value(json!({"blocked": true})).unwrap();
        let one = crate::policy::Override::read(terms).unwrap();
        let read = service.store.overrides().await.unwrap();
        let mut next = read.clone();
        next.set(
            &(
                "l".to_owned(),
                sluicegate_protocol::Whom::Key(key.to_owned()),
            ),
            &one,
        );
        let changed = service.store.change_overrides(&read, &next).await;
        assert!(changed.unwrap().is_some());
    }
    service
}

fn check_of(key: &str) -> Value {
    json!([{"limit": "l", "key": key}])
}

#[tokio::test]
async fn decisions_wait_while_the_first_reading_is_under_way() {
    let service = blocked().await;
    let reading = service.reading_overrides.lock().await;
    let read = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(reading);
    };
    let (denied, ()) = tokio::join!(ask(&service, check_of("k")), read);
    assert_eq!(denied["outcome"], "denied");
}

#[tokio::test]
async fn a_list_waits_too_and_never_leaves_out_what_was_not_read() {
    let service = blocked().await;
    let reading = service.reading_overrides.lock().await;
    let unread = service.list_overrides().await.unwrap_err();
    assert_eq!(unread.code, sluicegate_protocol::Code::StoreUnavailable);
    let read = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(reading);
    };
    let (list, ()) = tokio::join!(service.list_overrides(), read);
    assert_eq!(list.unwrap().overrides.len(), 3);
}

#[tokio::test]
async fn decisions_do_not_wait_beyond_their_deadline_and_then_nothing_decides() {
    let service = blocked().await;
    let reading = service.reading_overrides.lock().await;
    for key in ["k", "free"] {
        let began = Instant::now();
        let verdict = ask(&service, check_of(key)).await;
        let expected = json!({"outcome": "unavailable"});
        assert_eq!(verdict, expected, "{key}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    let unknown = ask(&service, json!([{"limit": "l", "key": ""}])).await;
    assert_eq!(unknown["outcome"], "error", "it cannot ever be decided");
    drop(reading);
    assert_eq!(ask(&service, check_of("k")).await["outcome"], "denied");
}

#[tokio::test]
async fn a_store_that_is_down_is_not_waited_for() {
    // Nobody listens there.
    let policy = format!("store: redis://127.0.0.1:1\n{POLICY}");
    let policy = crate::policy::Policy::parse(&policy).unwrap();
    let service = service_in(&policy.store, POLICY);
    let allowed = json!({"outcome": "unavailable", "then": "allow"});
    let began = Instant::now();
    while ask(&service, check_of("k")).await != allowed {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    let free = ask(&service, check_of("free")).await;
    assert_eq!(free["outcome"], "admitted", "the policy file's");
    let unread = service.list_overrides().await.unwrap_err();
    assert!(unread.message.contains("refused"), "{unread}");
}
