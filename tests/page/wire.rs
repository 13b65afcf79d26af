//! What the page's files and its stream are over HTTP, without a browser.

use std::time::Duration;

use reqwest::Response;
use sluicegate_tests::client::client;
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

const POLICY: &str = "limits: { a: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";
/// As the sidecar has it.
const MOST_VIEWERS: usize = 32;

async fn ask(sidecar: &Sidecar, path: &str) -> Response {
    let url = format!("http://127.0.0.1:{}{path}", sidecar.admin_port);
    client().get(url).send().await.unwrap()
}

#[tokio::test]
async fn every_file_forbids_what_is_not_the_pages_own() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(POLICY, folder.path()).await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page/page.css", "text/css"),
        ("/page/page.js", "text/javascript"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let answer = ask(&sidecar, path).await;
        assert_eq!(answer.status(), 200, "{path}");
        let header = |name| answer.headers()[name].to_str().unwrap();
        assert!(header("content-type").starts_with(kind), "{path}");
        let allowed = header("content-security-policy");
        assert!(allowed.starts_with("default-src 'none'; script-src 'self';"));
        assert!(!allowed.contains("unsafe"), "{allowed}");
        assert_eq!(header("x-content-type-options"), "nosniff");
    }
    assert_eq!(ask(&sidecar, "/page/nothing.js").await.status(), 404);
    assert_eq!(ask(&sidecar, "/page/..%2fpage.rs").await.status(), 404);
}

#[tokio::test]
async fn viewers_are_bounded_and_one_that_leaves_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(POLICY, folder.path()).await;
    let mut viewers = Vec::new();
    for _ in 0..MOST_VIEWERS {
        viewers.push(ask(&sidecar, "/page/stream").await);
    }
    for viewer in &mut viewers {
        assert_eq!(viewer.status(), 200);
        let first = viewer.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"event: past\n"), "{first:?}");
        let second = viewer.chunk().await.unwrap().unwrap();
        assert!(second.starts_with(b"event: snapshot\n"), "{second:?}");
    }
    assert_eq!(ask(&sidecar, "/page/stream").await.status(), 503);
    // Others are served all the same.
    assert_eq!(ask(&sidecar, "/healthz").await.status(), 200);
    viewers.pop();
    eventually("there is room for one more", async || {
        ask(&sidecar, "/page/stream").await.status() == 200
    })
    .await;
}

#[tokio::test]
async fn an_outage_that_nobody_watched_is_among_the_events() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let away = format!("store: redis://127.0.0.1:1\n{POLICY}");
    let sidecar = Sidecar::start(&away, folder.path()).await;
    eventually("two looks at the store have failed", async || {
        sidecar.metric("sluicegate_store_up").await == 0.0
            && ask(&sidecar, "/readyz")
                .await
                .text()
                .await
                .unwrap()
                .contains("does not answer")
    })
    .await;
    let mut viewer = ask(&sidecar, "/page/stream").await;
    let first = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            let heard = viewer.chunk().await.unwrap().unwrap();
            if heard.starts_with(b"event: snapshot\n") {
                return String::from_utf8(heard.to_vec()).unwrap();
            }
        }
    });
    let first = first.await.unwrap();
    assert!(first.contains("\"kind\":\"store_lost\""), "{first}");
    assert!(first.contains("\"state\":\"lost\""), "{first}");
}
