//! Clients: plain ones, and one that sends bytes no HTTP library would.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for any answer: anything slower counts as hanging. A machine may stand still for seconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// A client with its own connections.
///
/// # Panics
/// The system has no more sockets.
pub fn client() -> reqwest::Client {
    // No proxy: tests connect to this machine only.
    reqwest::Client::builder()
        .timeout(DEADLINE)
        .no_proxy()
        .build()
        .expect("a client")
}

static SHARED: LazyLock<reqwest::Client> = LazyLock::new(|| {
    // A pooled connection would belong to one test's runtime and fail in the next test.
    reqwest::Client::builder()
        .timeout(DEADLINE)
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .expect("a client")
});

/// The answer to a GET with these header fields.
///
/// # Panics
/// Nothing answers.
pub async fn get_with(url: &str, fields: &[(&str, &str)]) -> reqwest::Response {
    let mut request = SHARED.get(url);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let answer = request.send().await;
    answer.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Status and body of a GET.
///
/// # Panics
/// Nothing answers.
pub async fn get(url: &str) -> (u16, String) {
    let answer = get_with(url, &[]).await;
    (
        answer.status().as_u16(),
        answer.text().await.expect("a text body"),
    )
}

/// Status and body of a POST.
///
/// # Panics
/// Nothing answers.
pub async fn post(url: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
    let answer = SHARED
        .post(url)
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"));
    (
        answer.status().as_u16(),
        answer.text().await.expect("a text body"),
    )
}

/// The status of a GET with this API key; `None` when there is no answer.
pub async fn status_for(client: &reqwest::Client, url: &str, key: &str) -> Option<u16> {
    let answer = client.get(url).header("x-api-key", key).send().await;
    answer.ok().map(|answer| answer.status().as_u16())
}

/// Whether a GET is answered with 200.
pub async fn answers(url: &str) -> bool {
    SHARED
        .get(url)
        .send()
        .await
        .is_ok_and(|answer| answer.status().is_success())
}

/// Sends bytes unchanged and reads until the peer closes or has sent a complete response head; the status, if there is one.
pub async fn raw(port: u16, bytes: &[u8]) -> Option<u16> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(bytes).await.ok()?;
        let mut answer = Vec::new();
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut answer).await.ok()? == 0 {
                break;
            }
        }
        std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
    };
    tokio::time::timeout(DEADLINE, exchange)
        .await
        .expect("an answer to raw bytes within the deadline")
}
