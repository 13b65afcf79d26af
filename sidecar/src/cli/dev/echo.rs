//! The upstream of `sluicegate dev`, if none is given: answers with the request and with what it counted for.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::http::request::Parts;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::POLL;
use crate::cli::explain::Explain;
use crate::cli::stdout::line;

/// Most bytes of a body.
const MAX_BODY: usize = 1 << 20;

/// The client's address as the filter sees it. In X-Forwarded-For, Envoy writes its own in place of a loopback address.
const PEER: &str = "x-sluicegate-peer";
const FIELDS: &str = "request_headers_to_remove:\n";

/// Envoy's configuration with the client's address in requests.
pub fn with_peer(configuration: &str) -> String {
    let value = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%";
    let add = format!(
        "request_headers_to_add: [{{ header: {{ key: {PEER}, value: \"{value}\" }}, append_action: OVERWRITE_IF_EXISTS_OR_ADD }}]"
    );
    configuration.replace(FIELDS, &format!("{add}\n                  {FIELDS}"))
}

/// Starts it in this runtime, with which it ends; returns its address. `explain`: the arguments of `sluicegate explain` that name
/// the policy.
pub async fn start(explain: Vec<String>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let explain = Arc::new(explain);
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(POLL).await;
                continue;
            };
            let explain = Arc::clone(&explain);
            let service = service_fn(move |request| answer(request, Arc::clone(&explain)));
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(served);
        }
    });
    Ok(address)
}

async fn answer(
    request: Request<Incoming>,
    explain: Arc<Vec<String>>,
) -> Result<Response<String>, Infallible> {
    let (mut head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await;
    let peer = head.headers.remove(PEER);
    let mut text = format!("{} {}\n", head.method, head.uri);
    for field in fields(&head) {
        line!(text, "{field}");
    }
    text += &match body.map(|body| body.to_bytes()) {
        Ok(body) if body.is_empty() => "\n".to_owned(),
        Ok(body) => format!("\n{}\n\n", String::from_utf8_lossy(&body)),
        Err(error) => format!("\nthe body was not read: {error}\n\n"),
    };
    let peer = peer.as_ref().and_then(|peer| peer.to_str().ok());
    text += &counted(&head, peer.unwrap_or_default(), &explain).unwrap_or_else(|why| why);
    Ok(Response::new(text))
}

fn fields(head: &Parts) -> impl Iterator<Item = String> {
    let fields = head.headers.iter();
    fields.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
}

/// What the filter, which does not change a request, has asked of it.
fn counted(head: &Parts, peer: &str, explain: &[String]) -> Result<String, String> {
    let mut words = explain.to_vec();
    words.push(format!("--peer={peer}"));
    let request = format!("{} {}", head.method, head.uri);
    Explain::told(words, &request, fields(head)).map_err(|why| why + "\n")
}
