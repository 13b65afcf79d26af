//! Exports spans to a collector over HTTP, configured by OpenTelemetry's own environment variables.

use std::time::Duration;

use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

use super::environment::{collector, first_set};
use crate::telemetry::failures::FailureLog;
use crate::telemetry::labels::FailureKind;

/// The variables that name the protocol; the first that is set counts.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const PROTOCOL: &str = "http/protobuf";
const SERVICE: Key = Key::from_static_str("service.name");

/// Creates and sends spans; `None` if the environment does not turn tracing on.
///
/// # Errors
/// Spans cannot be exported as the environment asks. Never has the values, which may hold a password.
pub fn provider() -> Result<Option<SdkTracerProvider>, String> {
    let Some((name, endpoint)) = collector() else {
        return Ok(None);
    };
    if !endpoint.starts_with("http://") {
        return Err(format!(
            "{name} is not an http:// URL such as http://127.0.0.1:4318: run a collector beside the sidecar, which can \
             forward spans over TLS"
        ));
    }
    if let Some((name, protocol)) = first_set(PROTOCOLS)
        && protocol != PROTOCOL
    {
        return Err(format!(
            "{name} is not `{PROTOCOL}`, the only supported protocol for spans"
        ));
    }
    let exporter = OtlpExporter::builder().with_http().build();
    let exporter = LoggingExporter {
        exporter: exporter.map_err(|_| {
            "spans cannot be sent: the OTEL_EXPORTER_OTLP_ variables are invalid".to_owned()
        })?,
        failures: FailureLog::of("the collector", "the collector does not accept spans"),
    };
    // The exporter sends from a thread of its own.
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource());
    Ok(Some(provider.build()))
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

/// Logs when the collector does not accept spans. Not with the library's message, which contains the URL.
#[derive(Debug)]
struct LoggingExporter {
    exporter: OtlpExporter,
    failures: FailureLog,
}

impl SpanExporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        match &sent {
            Ok(()) => self.failures.succeeded(),
            Err(error) => {
                let kind = match error {
                    OTelSdkError::Timeout(_) => FailureKind::Timeout,
                    _ => FailureKind::Connection,
                };
                self.failures.began(0);
                self.failures
                    .failed(kind, format_args!("{spans} were lost"));
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
