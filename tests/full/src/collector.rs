//! A receiver of OTLP over HTTP, in place of a collector: it keeps the spans that it receives.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// What it has received so far.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    received: Arc<Mutex<Received>>,
    /// Where it listens.
    pub port: u16,
}

#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    requests: Vec<ExportTraceServiceRequest>,
}

impl Collector {
    /// Starts one.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let collector = Self {
            received: Arc::default(),
            port,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "only the sidecar's routes are described"
        )]
        let router = axum::Router::new()
            .route("/v1/traces", post(receive))
            .with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        collector
    }

    /// The value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All spans of a name.
    pub fn spans(&self, name: &str) -> Vec<Span> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = received.requests.iter().flat_map(|one| &one.resource_spans);
        let spans = resources
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| &scope.spans);
        spans.filter(|span| span.name == name).cloned().collect()
    }

    /// The senders' resource attributes of this name.
    pub fn resources(&self, name: &str) -> Vec<String> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = received.requests.iter().flat_map(|one| &one.resource_spans);
        let attributes = resources.flat_map(|one| one.resource.iter().flat_map(|r| &r.attributes));
        let named = attributes.filter(|attribute| attribute.key == name);
        named
            .map(|attribute| {
                text(
                    attribute
                        .value
                        .as_ref()
                        .and_then(|value| value.value.as_ref()),
                )
            })
            .collect()
    }

    /// Whether a text is anywhere in the received spans.
    pub fn has(&self, text: &str) -> bool {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received
            .bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }
}

async fn receive(State(collector): State<Collector>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body.clone()) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut received = collector
        .received
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    received.bytes.extend(&body);
    received.requests.push(request);
    StatusCode::OK
}

/// The value of a span's attribute as text; empty where it has none.
pub fn attribute(span: &Span, name: &str) -> String {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|attribute| attribute.key == name);
    text(found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()))
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}
