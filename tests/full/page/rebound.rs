//! A page whose name resolves to this machine after it was loaded (DNS rebinding), in a real browser: what it asks for has its
//! own origin.

use std::process::Stdio;
use std::time::Duration;

use sluicegate_tests::sidecar::Sidecar;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use super::policy;

const PATIENCE: Duration = Duration::from_secs(120);

/// Asks in every way that a script has, and shows the statuses.
const PAGE: &str = r#"<body><script>
const announced = { "sluicegate-filter": "0.1.0 configuration=2d0f3b8e61a4",
  "sluicegate-rules": '{"vm":"00000000000000000000000000000001","node":"n","sets":[],"serves":true}' };
const ways = [
  ["/v1/rules", {}], ["/v1/rules", { headers: announced }], ["/v1/rules", { headers: announced, method: "HEAD" }],
  ["/v1/rules", { headers: { ...announced, "accept-encoding": "" } }], ["/v1/rules", { headers: { range: "bytes=0-" } }],
  ["/v1/openapi.json", {}], ["/v1/rules", { method: "POST", headers: announced }],
  ["/v1/decide", { method: "POST", headers: announced, body: '{"decisions":[]}', referrerPolicy: "no-referrer" }],
];
(async () => {
  const statuses = [];
  for (const [path, how] of ways) statuses.push((await fetch(path, how)).status);
  document.body.textContent = "statuses " + statuses.join(" ");
})();
</script></body>"#;

/// The page's server, and the sidecar for everything else: at one address, as the browser sees it.
async fn rebinds(sidecar: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut browser, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut start = [0; 6];
                if browser.peek(&mut start).await.ok() == Some(6) && &start == b"GET / " {
                    let _ = browser.read(&mut [0; 4_096]).await;
                    let length = PAGE.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: {length}\r\n\r\n"
                    );
                    let _ = browser.write_all((head + PAGE).as_bytes()).await;
                } else {
                    let mut sidecar = TcpStream::connect(("127.0.0.1", sidecar)).await.unwrap();
                    let _ = copy_bidirectional(&mut browser, &mut sidecar).await;
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebound_page_reads_no_rules_and_announces_no_filter() {
    let sidecar = Sidecar::alone(&policy("memory", 5)).await;
    let port = rebinds(sidecar.port).await;
    let folder = tempfile::tempdir().unwrap();
    let browser = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--host-resolver-rules=MAP evil.example 127.0.0.1",
            "--virtual-time-budget=60000",
        ])
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .args(["--dump-dom", &format!("http://evil.example:{port}/")])
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let shown = tokio::time::timeout(PATIENCE, browser).await.unwrap();
    let shown = shown.expect("Chromium is not installed: apt-get install chromium");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("statuses 403 403 403 403 403 403 403 403<"),
        "{shown}"
    );
    let metrics = sidecar.metrics().await;
    assert!(!metrics.contains("sluicegate_filter_info{"), "{metrics}");
}
