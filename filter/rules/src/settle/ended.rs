//! How a stream ended, and what it tells of its usage.

use std::cell::{Cell, OnceCell};

use super::Property;
use crate::amount::{Found, Source, Tells};
use crate::claims::Claim;

/// How a stream ended, if nothing tells its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    NotReached,
    Failed,
    CutBeforeFirstByte,
    Cut,
    Whole,
}

/// A number among the attributes.
fn attribute(property: Property<'_>, path: &[&str]) -> Option<u64> {
    let bytes = property(path)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

impl End {
    pub fn of(property: Property<'_>) -> Self {
        /// Envoy's `UpstreamConnectionFailure` and `UpstreamOverflow`: that attempt was not sent.
        const NOT_SENT: u64 = 1 << 5 | 1 << 7;
        let number = |path: &[&str]| attribute(property, path).unwrap_or(0);
        // Every stream has flags. Who cannot read them must not take that for a request that was never sent.
        let Some(flags) = attribute(property, &["response", "flags"]) else {
            return Self::Whole;
        };
        let is_reached =
            property(&["upstream", "address"]).is_some_and(|address| !address.is_empty());
        let attempts = number(&["upstream", "request_attempt_count"]);
        if !is_reached || (flags & NOT_SENT != 0 && attempts <= 1) {
            return Self::NotReached;
        }
        let code = number(&["response", "code"]);
        if code == 429 || code >= 500 {
            return Self::Failed;
        }
        let details = property(&["response", "code_details"]);
        let is_whole = flags & CUT == 0 && details.as_deref() == Some(b"via_upstream");
        match (is_whole, number(&["response", "size"])) {
            (true, _) => Self::Whole,
            (false, 0) => Self::CutBeforeFirstByte,
            (false, _) => Self::Cut,
        }
    }
}

/// Envoy's `DownstreamConnectionTermination` and `DownstreamRemoteReset`: the client hung up.
const CUT: u64 = 1 << 14 | 1 << 28;

/// The end of a stream.
pub(super) struct Ended<'e> {
    pub property: Property<'e>,
    pub is_reached: bool,
    pub headers: &'e [(String, Found)],
    pub metadata: &'e OnceCell<Vec<u8>>,
    pub before: &'e [Option<u64>],
    pub is_odd: Cell<bool>,
}

impl Ended<'_> {
    fn metadata(&self) -> &[u8] {
        self.metadata
            .get_or_init(|| (self.property)(&["metadata"]).unwrap_or_default())
    }
}

impl Tells for Ended<'_> {
    fn number(&self, source: &Source) -> Found {
        let attribute = |path: &[&str]| attribute(self.property, path);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let number = |number: u64| Found::Number(number as f64);
        match source {
            Source::Status(table) => attribute(&["response", "code"])
                .filter(|code| *code > 0)
                .map_or(Found::Nothing, |code| table.of(code)),
            Source::GrpcStatus(table) => attribute(&["response", "grpc_status"])
                .map_or(Found::Nothing, |status| table.of(status)),
            _ if !self.is_reached => Found::Nothing,
            Source::Bytes => attribute(&["response", "size"]).map_or(Found::Nothing, number),
            Source::Milliseconds => attribute(&["request", "duration"])
                .map_or(Found::Nothing, |nanoseconds| {
                    number(nanoseconds.div_ceil(1_000_000))
                }),
            Source::Header(name) => {
                let mut headers = self.headers.iter();
                headers
                    .find(|(told, _)| told == name)
                    .map_or(Found::Nothing, |(_, found)| *found)
            }
            Source::Metadata(claim, index) => {
                let found = claim.number(self.metadata());
                match (found, self.before.get(*index)) {
                    (Found::Number(number), Some(Some(before))) if number.to_bits() == *before => {
                        Found::Nothing
                    }
                    _ => found,
                }
            }
            Source::Constant(_) | Source::Largest(_) | Source::Sum(_) => Found::Nothing,
        }
    }

    fn text(&self, claim: &Claim) -> Option<String> {
        claim.word(self.metadata())
    }

    /// Less than nothing was used: nothing. What is no number tells no usage.
    fn instead(&self, found: Found, _: f64) -> Option<f64> {
        matches!(found, Found::Number(_)).then_some(0.0)
    }

    fn note_odd(&self) {
        self.is_odd.set(true);
    }
}
