//! Where spans go: a collector, over HTTP, as the environment says in OpenTelemetry's own variables.

use std::env::var;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter as OtlpExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::{info, warn};

use crate::clock;
use crate::telemetry::labels::FailureKind;
use crate::telemetry::repeats::Repeats;

/// Those that name the collector.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// Those that name how it is spoken to.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const PROTOCOL: &str = "http/protobuf";
const SERVICE: Key = Key::from_static_str("service.name");

/// Why the environment's wish cannot be met. Says nothing of its values: they may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// Not the one protocol that there is.
    #[error("{0} is not `{PROTOCOL}`, the only protocol that spans can be sent by")]
    Protocol(&'static str),
    /// Not an address of HTTP.
    #[error(
        "{0} is not an http:// URL such as http://127.0.0.1:4318: use a collector beside the sidecar, which may go on with TLS"
    )]
    Endpoint(&'static str),
    /// The library refused.
    #[error("spans cannot be sent: the OTEL_EXPORTER_OTLP_ variables are wrong")]
    Exporter(#[source] ExporterBuildError),
}

/// What makes spans and sends them; nothing where the environment does not ask for it.
pub fn provider() -> Result<Option<SdkTracerProvider>, TracesError> {
    let endpoint = first(ENDPOINTS);
    let disabled = var("OTEL_SDK_DISABLED").is_ok_and(|on| on.eq_ignore_ascii_case("true"));
    let none = var("OTEL_TRACES_EXPORTER").is_ok_and(|exporter| exporter == "none");
    let (Some((name, endpoint)), false) = (endpoint, disabled || none) else {
        return Ok(None);
    };
    if !endpoint.starts_with("http://") {
        return Err(TracesError::Endpoint(name));
    }
    if let Some((name, protocol)) = first(PROTOCOLS)
        && protocol != PROTOCOL
    {
        return Err(TracesError::Protocol(name));
    }
    let exporter = OtlpExporter::builder()
        .with_http()
        .build()
        .map_err(TracesError::Exporter)?;
    let exporter = Logged {
        exporter,
        repeats: Arc::default(),
    };
    // It sends from a thread of its own.
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource());
    Ok(Some(provider.build()))
}

/// The first of some variables that is set, with its name.
fn first(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let set = |name| Some((name, var(name).ok().filter(|value| !value.is_empty())?));
    names.into_iter().find_map(set)
}

fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version.clone()).build();
    let unnamed = resource
        .get(&SERVICE)
        .is_none_or(|name| name.as_str().starts_with("unknown_service"));
    if unnamed {
        let named = Resource::builder().with_attribute(version);
        return named.with_service_name("sluicegate").build();
    }
    resource
}

/// Tells in the log when the collector does not take spans. Not with the library's words, which have its URL.
#[derive(Debug)]
struct Logged {
    exporter: OtlpExporter,
    repeats: Arc<Mutex<Repeats>>,
}

impl SpanExporter for Logged {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let (spans, sent) = (batch.len(), self.exporter.export(batch));
        async move {
            let sent = sent.await;
            let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            let now_us = clock::now_us();
            match &sent {
                Ok(()) => {
                    if let Some(over) = repeats.succeeded(now_us) {
                        let failed = over.failed;
                        info!("the collector takes spans again; {failed} calls were lost");
                    }
                }
                Err(error) => {
                    let kind = match error {
                        OTelSdkError::Timeout(_) => FailureKind::Timeout,
                        _ => FailureKind::Connection,
                    };
                    if let Some(repeated) = repeats.failed(now_us, kind) {
                        warn!(%kind, repeated, spans, "the collector does not take spans");
                    }
                }
            }
            sent
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
