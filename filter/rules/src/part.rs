//! Parts of a key: where each comes from, what it is called and what it says of a request.

use std::borrow::Cow;

use crate::address::{self, Mask};
use crate::claims::Claim;
use crate::cookies;
use crate::found::Found;
use crate::header::{self, only};
use crate::key::Key;
use crate::path::coarsest_segment;
use crate::seen::{Reading, Seen};
use crate::template::Capture;

/// One part of a key.
#[derive(Debug)]
pub(crate) struct Part {
    pub source: Source,
    /// What it is called in a key, as it is spelt there. Sources other than headers have names that begin with `@`,
    /// which no header's can.
    pub name: String,
    /// Hash it: it may be a secret, or somebody's name.
    pub hashed: bool,
}

/// Where a part comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Header(String),
    Cookie(String),
    Query(String),
    Path,
    /// A variable of the rule's path template.
    Variable(String),
    Method,
    Host,
    Address(address::Source, Mask),
    Claim(Claim),
    /// An attribute of the connection; an identity only if it begins with this.
    Certificate {
        attribute: &'static str,
        prefix: &'static str,
    },
    /// Any attribute of Envoy's, by its path.
    Attribute(Vec<String>),
    Constant(String),
}

impl Part {
    /// Whether different readings of the target may give it different values.
    pub const fn varies(&self) -> bool {
        matches!(
            self.source,
            Source::Query(_) | Source::Path | Source::Variable(_)
        )
    }

    /// Looks the part up in one reading of the target.
    pub fn find<'a>(
        &'a self,
        seen: &'a Seen<'_>,
        reading: Reading<'a, '_>,
        captures: &[Capture<'a>],
    ) -> Found<'a> {
        match &self.source {
            Source::Header(name) => header::find(seen.headers(), name),
            Source::Cookie(name) => cookies::find(seen.headers(), name),
            Source::Query(name) => only(reading.parameter(name).map(Cow::Borrowed)),
            Source::Path => reading.canonical().map_or(Found::Ambiguous, Found::of),
            // A path that cannot be read has no variables, and must not have its key missing because of that.
            Source::Variable(_) if reading.path().is_none() => Found::Ambiguous,
            Source::Variable(name) => {
                let of_name = captures.iter().find(|(given, _)| given == name);
                of_name.map_or(Found::Missing, |(_, captured)| {
                    if captured.iter().any(|byte| matches!(byte, b'%' | b';')) {
                        Found::of(coarsest_segment(captured))
                    } else {
                        Found::of(*captured)
                    }
                })
            }
            Source::Method => Found::of(seen.method.to_ascii_uppercase()),
            Source::Host => Found::of(seen.host()),
            Source::Address(source, mask) => address::client(seen.request, *source, *mask),
            Source::Claim(claim) => claim.read(seen.request),
            Source::Certificate { attribute, prefix } => optional(
                seen.request
                    .property(&["connection", attribute])
                    .filter(|identity| identity.starts_with(prefix.as_bytes())),
            ),
            Source::Attribute(path) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                optional(seen.request.property(&path))
            }
            Source::Constant(text) => Found::of(text.as_bytes()),
        }
    }

    /// Adds a value of this part to a key.
    pub fn add(&self, key: &mut Key<'_>, kind: &str, value: &[u8]) {
        if self.hashed {
            key.hashed(&[&self.name, kind], value);
        } else {
            key.plain(&[&self.name, kind], value);
        }
    }
}

fn optional<'a>(found: Option<Vec<u8>>) -> Found<'a> {
    Found::of(found.unwrap_or_default())
}
