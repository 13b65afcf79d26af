//! Stands in for `traces.rs` in a sidecar that is built without the feature `otlp`: there are no spans.

#![allow(missing_docs, reason = "`traces.rs` has them")]

#[path = "environment.rs"]
mod environment;

use std::time::Duration;

use sluicegate_engine::Batch;
use tracing::warn;

use super::labels::FailureKind;
use super::verdict::Decided;

#[derive(Clone, Debug, Default)]
pub struct Traces(());

#[derive(Debug)]
pub enum Trace {}

#[derive(Clone, Debug)]
pub enum Parent {}

#[derive(Debug)]
pub enum StoreSpan {}

impl Traces {
    /// Warns if the environment turns tracing on.
    ///
    /// # Errors
    /// Never.
    pub fn from_environment() -> Result<Self, String> {
        if let Some((name, _)) = environment::collector() {
            warn!(
                "{name} is set, but this sidecar was built without the feature `otlp` and sends no spans: build it with \
                 `make build`"
            );
        }
        Ok(Self(()))
    }

    pub fn decide<'h, 'd>(
        &self,
        _: impl Fn(&str) -> Option<&'h str>,
        _: impl Iterator<Item = Option<&'d str>>,
    ) -> Option<Trace> {
        None
    }

    pub fn shutdown(&self) {}
}

impl Trace {
    pub fn parent(&self) -> Option<Parent> {
        match *self {}
    }

    pub fn end(self, _: &[Decided]) {
        match self {}
    }
}

impl Parent {
    pub fn record_queue_wait(&self, _: Duration, _: Option<&StoreSpan>) {
        match *self {}
    }

    pub fn record_store_call(&self, _: Duration, _: &Batch) {
        match *self {}
    }
}

impl StoreSpan {
    pub fn start<'a>(_: impl Iterator<Item = Option<&'a Parent>>, _: &Batch) -> Option<Self> {
        None
    }

    pub fn end(self, _: Option<FailureKind>) {
        match self {}
    }
}
