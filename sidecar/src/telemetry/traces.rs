//! Traces: the path of a decision through the queue and the store, as OpenTelemetry spans. `docs/tracing.md` shows them.
//!
//! Off by default, at the cost of one branch per request: without a [`Trace`], no span is created.
//! No attribute holds a key.
//!
//! | span | parent | for |
//! |---|---|---|
//! | `decision` | the request that the filter decides | one decision with a `traceparent` |
//! | `decide` | the `traceparent` of the call, else the first `decision` | one `POST /v1/decide` |
//! | `queue` | `decide` | the wait for the running store call |
//! | `store` | the `decide` of the first caller | one store call; linked to the `decide` of the other callers |

mod environment;
mod otlp;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Link, Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan};
use sluicegate_engine::Batch;

use super::labels::{FailureKind, Outcome};
use super::verdict::Decided;

/// The instrumentation scope.
const SCOPE: &str = "sluicegate";
/// The W3C header that names a trace and the parent span.
const TRACEPARENT: &str = "traceparent";

/// Bytes of a `tracestate` that the standard asks to pass on; each span keeps its own until it is sent.
const MAX_STATE_BYTES: usize = 512;

/// Creates spans, if tracing is on.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

/// The spans of one `POST /v1/decide`.
#[derive(Debug)]
pub struct Trace {
    decide: SdkSpan,
    /// Spans of the decisions with a `traceparent`, by the decision's index.
    decisions: Vec<(usize, SdkSpan)>,
    tracer: SdkTracer,
}

/// The parent of the spans of the queue and the store.
#[derive(Clone, Debug)]
pub struct Parent {
    decide: SpanContext,
    tracer: Arc<SdkTracer>,
}

/// The span of a running store call.
#[derive(Debug)]
pub struct StoreSpan(SdkSpan);

impl Traces {
    /// On if `OTEL_EXPORTER_OTLP_ENDPOINT`, OpenTelemetry's own variable, names a collector.
    ///
    /// # Errors
    /// The environment asks for something that is not supported.
    pub fn from_environment() -> Result<Self, String> {
        Ok(Self {
            provider: otlp::provider()?,
        })
    }

    /// Starts the spans of a call: `header` looks up its headers, `traceparents` has one entry per decision. `None` if
    /// tracing is off or the sampler drops this call.
    pub fn decide<'h, 'd>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        traceparents: impl Iterator<Item = Option<&'d str>>,
    ) -> Option<Trace> {
        let tracer = self.provider.as_ref()?.tracer(SCOPE);
        let start = |name: &'static str, kind, parent: &Context| {
            let span = SpanBuilder::from_name(name).with_kind(kind);
            tracer.build_with_context(span, parent)
        };
        let mut decisions = Vec::new();
        for (index, traceparent) in traceparents.enumerate() {
            if let Some(traceparent) = traceparent {
                let parent = remote_parent(|name| (name == TRACEPARENT).then_some(traceparent));
                // An invalid `traceparent` names no trace to join.
                if parent.span().span_context().is_valid() {
                    let span = start("decision", SpanKind::Server, &parent);
                    if span.is_recording() {
                        decisions.push((index, span));
                    }
                }
            }
        }
        let mut parent = remote_parent(header);
        let mut links = decisions.as_slice();
        if let (false, Some(((_, first), others))) = (
            parent.span().span_context().is_valid(),
            decisions.split_first(),
        ) {
            parent = child_of(first.span_context());
            links = others;
        }
        let mut decide = start("decide", SpanKind::Server, &parent);
        if !decide.is_recording() && decisions.is_empty() {
            return None;
        }
        for (_, span) in links {
            decide.add_link(span.span_context().clone(), Vec::new());
        }
        for (_, span) in &mut decisions {
            span.add_link(decide.span_context().clone(), Vec::new());
        }
        Some(Trace {
            decide,
            decisions,
            tracer,
        })
    }

    /// Sends the remaining spans; blocks for a second at most.
    pub fn shutdown(&self) {
        if let Some(provider) = &self.provider {
            // The process ends, so a failure cannot be reported any more.
            let _ = provider.shutdown_with_timeout(Duration::from_secs(1));
        }
    }
}

impl Trace {
    /// The parent for the spans of the queue and the store.
    pub fn parent(&self) -> Option<Parent> {
        self.decide.is_recording().then(|| Parent {
            decide: self.decide.span_context().clone(),
            tracer: Arc::new(self.tracer.clone()),
        })
    }

    /// Ends the spans, with the verdicts as attributes.
    pub fn end(mut self, decided: &[Decided]) {
        for (index, mut span) in self.decisions {
            if let Some(decided) = decided.get(index) {
                span.set_attributes([
                    KeyValue::new("sluicegate.limit", decided.limit().to_owned()),
                    KeyValue::new("sluicegate.verdict", outcome(decided).name()),
                    KeyValue::new("sluicegate.source", decided.source.name()),
                ]);
            }
            span.end();
        }
        let count = |wanted| {
            decided
                .iter()
                .filter(|decided| outcome(decided) == wanted)
                .count()
        };
        self.decide.set_attributes([
            number("sluicegate.decisions", decided.len()),
            number("sluicegate.admitted", count(Outcome::Admitted)),
            number("sluicegate.denied", count(Outcome::Denied)),
            number("sluicegate.unavailable", count(Outcome::Unavailable)),
            number("sluicegate.errors", count(Outcome::Error)),
        ]);
        self.decide.end();
    }
}

impl Parent {
    /// Records how long the caller's first decisions waited for the store call that takes them now.
    pub fn record_queue_wait(&self, duration: Duration, call: Option<&StoreSpan>) {
        let links = call.map(|call| Link::with_context(call.0.span_context().clone()));
        let span = SpanBuilder::from_name("queue").with_links(links.into_iter().collect());
        self.record(span, duration);
    }

    /// Records a store call without a queue, for this caller alone.
    pub fn record_store_call(&self, duration: Duration, batch: &Batch) {
        let span = SpanBuilder::from_name("store").with_attributes(sizes(batch));
        self.record(span, duration);
    }

    /// Records a span that ends now.
    fn record(&self, span: SpanBuilder, duration: Duration) {
        let now = SystemTime::now();
        let span = span.with_start_time(now.checked_sub(duration).unwrap_or(now));
        let mut span = self
            .tracer
            .build_with_context(span, &child_of(&self.decide));
        span.end_with_timestamp(now);
    }
}

impl StoreSpan {
    /// Starts the span of a store call, if any of its callers is traced.
    pub fn start<'a>(
        mut callers: impl Iterator<Item = Option<&'a Parent>>,
        batch: &Batch,
    ) -> Option<Self> {
        let first = callers.by_ref().flatten().next()?;
        let others = callers.flatten();
        let links = others.map(|caller| Link::with_context(caller.decide.clone()));
        let span = SpanBuilder::from_name("store")
            .with_kind(SpanKind::Client)
            .with_attributes(sizes(batch))
            .with_links(links.collect());
        let parent = child_of(&first.decide);
        Some(Self(first.tracer.build_with_context(span, &parent)))
    }

    /// Ends the span; `failed` is why the call failed, if it did.
    pub fn end(mut self, failed: Option<FailureKind>) {
        if let Some(kind) = failed {
            self.0
                .set_attribute(KeyValue::new("error.type", kind.name()));
            self.0.set_status(Status::error(kind.name()));
        }
        self.0.end();
    }
}

/// The size of a call, as attributes.
fn sizes(batch: &Batch) -> [KeyValue; 2] {
    [
        number("sluicegate.decisions", batch.decisions.len()),
        number("sluicegate.buckets", batch.buckets.len()),
    ]
}

fn number(name: &'static str, number: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
}

fn outcome(decided: &Decided) -> Outcome {
    (&decided.verdict).into()
}

fn child_of(span: &SpanContext) -> Context {
    Context::new().with_remote_span_context(span.clone())
}

/// The context of the span that the headers name; an empty one if they name none.
fn remote_parent<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Context {
    let w3c = TraceContextPropagator::new();
    let headers = w3c
        .fields()
        .filter_map(|name| Some((name.to_owned(), header(name)?.to_owned())))
        .filter(|(_, value)| value.len() <= MAX_STATE_BYTES);
    let headers: HashMap<_, _> = headers.collect();
    w3c.extract_with_context(&Context::new(), &headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_tracing_off_no_header_and_no_decision_is_read() {
        let traces = Traces::default();
        let header = |_: &str| -> Option<&str> { panic!("a header was read") };
        let decisions =
            std::iter::from_fn(|| -> Option<Option<&str>> { panic!("a decision was read") });
        assert!(traces.decide(header, decisions).is_none());
        traces.shutdown();
        // Each caller in the queue carries `None`, and each store call checks for it.
        let callers = std::iter::repeat_n(None, 3);
        assert!(StoreSpan::start(callers, &Batch::default()).is_none());
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        for bad in ["", "00", "00-0-0-01", "\u{fffd}", &"0".repeat(1_000)] {
            let context = remote_parent(|_| Some(bad));
            assert!(!context.span().span_context().is_valid(), "{bad}");
        }
    }
}
