//! An upstream that answers every request with 200 and echoes it.

use axum::Router;
use axum::http::{HeaderMap, Uri};
use tokio::net::TcpListener;

/// Starts one in this runtime, with which it ends; returns its port.
///
/// # Panics
/// There is no free port.
pub async fn start() -> u16 {
    serve(Router::new().fallback(echo)).await
}

/// Likewise, one that answers so.
///
/// # Panics
/// There is no free port.
pub async fn serve(router: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

async fn echo(uri: Uri, headers: HeaderMap) -> String {
    let mut text = format!("{uri}\n");
    for (name, value) in &headers {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    text
}
