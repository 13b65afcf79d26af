//! Components of a key: source, name, and how to look up their values in a request.

use std::borrow::Cow;

use crate::claims::Claim;
use crate::config::terms::Address;
use crate::cookies;
use crate::header::{self, only};
use crate::key::Key;
use crate::lookup::Lookup;
use crate::path::coarsest_segment;
use crate::request_view::{Reading, RequestView};
use crate::template::Capture;

/// One component of a key.
#[derive(Debug)]
pub(crate) struct KeyComponent {
    pub source: ComponentSource,
    /// Its name in a key, already escaped. Names of sources other than headers begin with `@`, which no header name
    /// can.
    pub name: String,
    /// Hash the value, which may be a secret or personal data.
    pub hashed: bool,
}

/// Where a component's value comes from.
#[derive(Debug)]
pub(crate) enum ComponentSource {
    Header(String),
    Cookie(String),
    Query(String),
    Path,
    /// A variable of the rule's path template.
    Variable(String),
    Method,
    Host,
    Address(Address),
    Claim(Claim),
    /// Any Envoy attribute, by its path; a value that does not begin with `prefix` counts as missing.
    Attribute {
        path: Vec<String>,
        prefix: &'static str,
    },
    Constant(String),
}

impl KeyComponent {
    /// Whether the value can differ between readings of the target.
    pub const fn varies(&self) -> bool {
        matches!(
            self.source,
            ComponentSource::Query(_) | ComponentSource::Path | ComponentSource::Variable(_)
        )
    }

    /// Looks up the value in one reading of the target.
    pub fn find<'a>(
        &'a self,
        view: &'a RequestView<'_>,
        reading: Reading<'a, '_>,
        captures: &[Capture<'a>],
    ) -> Lookup<'a> {
        match &self.source {
            ComponentSource::Header(name) => header::find(view.headers(), name),
            ComponentSource::Cookie(name) => cookies::find(view.headers(), name),
            ComponentSource::Query(name) => only(reading.parameter(name).map(Cow::Borrowed)),
            ComponentSource::Path => reading.canonical().map_or(Lookup::Ambiguous, Lookup::of),
            // A path with too many readings has no variables, but must not count as a missing key.
            ComponentSource::Variable(_) if reading.path().is_none() => Lookup::Ambiguous,
            ComponentSource::Variable(name) => {
                let of_name = captures.iter().find(|(given, _)| given == name);
                of_name.map_or(Lookup::Missing, |(_, captured)| {
                    Lookup::of(coarsest_segment(captured))
                })
            }
            ComponentSource::Method => Lookup::of(view.method_of_key()),
            ComponentSource::Host => Lookup::of(view.host()),
            ComponentSource::Address(address) => address.find(view.request),
            ComponentSource::Claim(claim) => claim.read(view.request),
            ComponentSource::Attribute { path, prefix } => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                let value = view.request.property(&path);
                let value = value.filter(|value| value.starts_with(prefix.as_bytes()));
                value.map_or(Lookup::Missing, Lookup::of)
            }
            ComponentSource::Constant(text) => Lookup::of(text.as_bytes()),
        }
    }

    /// Adds a value of this component to a key.
    pub fn add(&self, key: &mut Key<'_>, kind: &str, value: &[u8]) {
        if self.hashed {
            key.hashed(&[&self.name, kind], value);
        } else {
            key.plain(&[&self.name, kind], value);
        }
    }
}
