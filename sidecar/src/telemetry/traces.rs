//! Traces: a decision's way through the queue and the store as OpenTelemetry spans. `docs/tracing.md` shows them.
//!
//! Off, which is the default, each request costs one branch: there is no [`Trace`], and nothing below makes a span.
//! No attribute holds a key.
//!
//! | span | parent | for |
//! |---|---|---|
//! | `decision` | the request that the filter asks for | one decision that names its trace |
//! | `decide` | the `traceparent` of the call, else the first `decision` | one `POST /v1/decide` |
//! | `queue` | `decide` | the wait for the store call under way |
//! | `store` | the `decide` of the first caller | one store call; linked to the `decide` of the other callers |

mod otlp;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Link, Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan};
use sluicegate_engine::Batch;

use super::labels::{FailureKind, Outcome};
use super::verdict::Told;
pub use otlp::TracesError;

/// Name of what makes the spans.
const SCOPE: &str = "sluicegate";
/// The W3C's name of the field that names a trace and a span in it.
const TRACEPARENT: &str = "traceparent";

/// Whether spans are made, and by what.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

/// The spans of one `POST /v1/decide`.
#[derive(Debug)]
pub struct Trace {
    decide: SdkSpan,
    /// Those of the decisions that name a trace, by their places.
    decisions: Vec<(usize, SdkSpan)>,
    tracer: SdkTracer,
}

/// What the queue and the store add their spans to.
#[derive(Clone, Debug)]
pub struct Parent {
    decide: SpanContext,
    tracer: Arc<SdkTracer>,
}

/// A store call under way.
#[derive(Debug)]
pub struct StoreSpan(SdkSpan);

impl Traces {
    /// On if the environment names where spans go, as OpenTelemetry wants it: `OTEL_EXPORTER_OTLP_ENDPOINT`.
    ///
    /// # Errors
    /// What the environment says cannot be done.
    pub fn from_environment() -> Result<Self, TracesError> {
        Ok(Self {
            provider: otlp::provider()?,
        })
    }

    /// Begins the spans of a call: `header` gives its headers, `traceparents` those that its decisions name. Nothing
    /// when traces are off, or its sampler does not want this one.
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
        for (place, traceparent) in traceparents.enumerate() {
            if let Some(traceparent) = traceparent {
                let parent = named(&|name| (name == TRACEPARENT).then_some(traceparent));
                // What names no trace has no trace to be seen in.
                if parent.span().span_context().is_valid() {
                    let span = start("decision", SpanKind::Server, &parent);
                    if span.is_recording() {
                        decisions.push((place, span));
                    }
                }
            }
        }
        let mut parent = named(&header);
        let mut links = decisions.as_slice();
        if let (false, Some(((_, first), others))) = (
            parent.span().span_context().is_valid(),
            decisions.split_first(),
        ) {
            parent = within(first.span_context());
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

    /// Sends what has not been sent, for a second at most; blocks.
    pub fn shutdown(&self) {
        if let Some(provider) = &self.provider {
            // Whoever wants the spans knows that they are missing.
            let _ = provider.shutdown_with_timeout(Duration::from_secs(1));
        }
    }
}

impl Trace {
    /// What the queue and the store add to.
    pub fn parent(&self) -> Option<Parent> {
        self.decide.is_recording().then(|| Parent {
            decide: self.decide.span_context().clone(),
            tracer: Arc::new(self.tracer.clone()),
        })
    }

    /// Ends its spans, with what was decided.
    pub fn end(mut self, told: &[Told<'_>]) {
        for (place, mut span) in self.decisions {
            if let Some(told) = told.get(place) {
                span.set_attributes([
                    KeyValue::new("sluicegate.limit", told.limit.to_owned()),
                    KeyValue::new("sluicegate.verdict", outcome(told).name()),
                    KeyValue::new("sluicegate.source", told.source.name()),
                ]);
            }
            span.end();
        }
        let count = |wanted| told.iter().filter(|told| outcome(told) == wanted).count();
        self.decide.set_attributes([
            number("sluicegate.decisions", told.len()),
            number("sluicegate.admitted", count(Outcome::Admitted)),
            number("sluicegate.denied", count(Outcome::Denied)),
            number("sluicegate.unavailable", count(Outcome::Unavailable)),
            number("sluicegate.errors", count(Outcome::Error)),
        ]);
        self.decide.end();
    }
}

impl Parent {
    /// A caller's first decisions have waited, and go now with a store call.
    pub fn waited(&self, duration: Duration, call: Option<&StoreSpan>) {
        let now = SystemTime::now();
        let links = call.map(|call| Link::with_context(call.0.span_context().clone()));
        let span = SpanBuilder::from_name("queue")
            .with_start_time(now.checked_sub(duration).unwrap_or(now))
            .with_links(links.into_iter().collect());
        let mut span = self.tracer.build_with_context(span, &within(&self.decide));
        span.end_with_timestamp(now);
    }

    /// The store has decided at once, for this caller alone.
    pub fn stored(&self, duration: Duration, batch: &Batch) {
        let now = SystemTime::now();
        let began = now.checked_sub(duration).unwrap_or(now);
        let span = SpanBuilder::from_name("store").with_start_time(began);
        let mut span = self
            .tracer
            .build_with_context(span.with_attributes(sizes(batch)), &within(&self.decide));
        span.end_with_timestamp(now);
    }
}

impl StoreSpan {
    /// Begins the span of a store call, if any of its callers is traced.
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
        let parent = within(&first.decide);
        Some(Self(first.tracer.build_with_context(span, &parent)))
    }

    /// It has come back, with why it failed if it did.
    pub fn end(mut self, failed: Option<FailureKind>) {
        if let Some(kind) = failed {
            self.0
                .set_attribute(KeyValue::new("error.type", kind.name()));
            self.0.set_status(Status::error(kind.name()));
        }
        self.0.end();
    }
}

/// How large a call is.
fn sizes(batch: &Batch) -> [KeyValue; 2] {
    [
        number("sluicegate.decisions", batch.decisions.len()),
        number("sluicegate.buckets", batch.buckets.len()),
    ]
}

fn number(name: &'static str, number: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
}

fn outcome(told: &Told<'_>) -> Outcome {
    (&told.verdict).into()
}

fn within(span: &SpanContext) -> Context {
    Context::new().with_remote_span_context(span.clone())
}

/// The span that headers name; none where they name none.
fn named<'a>(header: &dyn Fn(&str) -> Option<&'a str>) -> Context {
    struct Headers<'h, 'a>(&'h dyn Fn(&str) -> Option<&'a str>);
    impl Extractor for Headers<'_, '_> {
        fn get(&self, name: &str) -> Option<&str> {
            (self.0)(name)
        }
        fn keys(&self) -> Vec<&str> {
            Vec::new()
        }
    }
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(header))
}

/// A `traceparent` that a decision carries.
pub fn of_decision<'a>(decision: &'a sluicegate_protocol::Decision<'_>) -> Option<&'a str> {
    decision.traceparent.as_ref().map(Cow::as_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_no_header_and_no_decision_is_looked_at() {
        let traces = Traces::default();
        let header = |_: &str| -> Option<&str> { panic!("a header was looked at") };
        let decisions = std::iter::from_fn(|| -> Option<Option<&str>> { panic!("a decision") });
        assert!(traces.decide(header, decisions).is_none());
        traces.shutdown();
        // What each caller in the queue carries, and what each call looks for.
        let callers = std::iter::repeat_n(None, 3);
        assert!(StoreSpan::start(callers, &Batch::default()).is_none());
    }

    #[test]
    fn what_names_no_trace_is_passed_over() {
        for bad in ["", "00", "00-0-0-01", "\u{fffd}", &"0".repeat(1_000)] {
            let context = named(&|_| Some(bad));
            assert!(!context.span().span_context().is_valid(), "{bad}");
        }
    }
}
