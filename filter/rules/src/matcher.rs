//! Which requests a rule is for.
//!
//! A matcher looks at one reading of the path at a time (see `path.rs`). A rule is for a request when its whole matcher
//! holds for any one reading; so `not` cannot be stepped around by a path that reads differently elsewhere.

use std::cell::OnceCell;

use regex_lite::Regex;

use crate::fields;
use crate::path::{Target, without_trailing_slash};
use crate::request::{Headers, Request};
use crate::template::{Capture, Template};

/// A request, read as far as all rules need it.
pub(crate) struct Seen<'r> {
    pub request: &'r dyn Request,
    pub target: Target<'r>,
    pub method: &'r [u8],
    host: OnceCell<Vec<u8>>,
}

impl<'r> Seen<'r> {
    pub fn new(request: &'r dyn Request) -> Self {
        let headers = request.headers();
        Self {
            request,
            target: Target::read(headers.first(":path")),
            method: headers.first(":method"),
            host: OnceCell::new(),
        }
    }

    pub fn headers(&self) -> &'r Headers {
        self.request.headers()
    }

    /// The host in lower case, without port and without the dot that may end it.
    pub fn host(&self) -> &[u8] {
        self.host.get_or_init(|| {
            let headers = self.request.headers();
            let given = match headers.first(":authority") {
                b"" => headers.first("host"),
                authority => authority,
            };
            host_of(given)
        })
    }
}

fn host_of(authority: &[u8]) -> Vec<u8> {
    // Nothing before an `@` is part of the host.
    let authority = authority
        .rsplit(|byte| *byte == b'@')
        .next()
        .unwrap_or_default();
    let host = match authority {
        // An IPv6 literal has colons of its own.
        [b'[', ..] => authority
            .iter()
            .position(|byte| *byte == b']')
            .and_then(|end| authority.get(..=end))
            .unwrap_or(authority),
        authority => authority
            .split(|byte| *byte == b':')
            .next()
            .unwrap_or_default(),
    };
    host.strip_suffix(b".").unwrap_or(host).to_ascii_lowercase()
}

/// Which requests a rule is for.
#[derive(Debug)]
pub(crate) enum Matcher {
    /// Each of these; none of them: any request.
    All(Vec<Matcher>),
    /// At least one of these.
    Any(Vec<Matcher>),
    Not(Box<Matcher>),
    Path(String),
    PathPrefix(String),
    PathTemplate(Template),
    PathRegex(Regex),
    /// One of these, in capitals.
    Methods(Vec<String>),
    Hosts(Vec<Host>),
    Header(String, Condition),
    Query(String, Condition),
}

/// `api.example.com`, or `*.example.com` for everything under it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Exact(String),
    /// With its leading dot.
    Under(String),
}

/// What must be true of a header or query parameter. One that is sent several times fulfils a condition if any of its
/// values does.
#[derive(Debug)]
pub(crate) enum Condition {
    Present,
    Absent,
    Equals(String),
    Prefix(String),
    Regex(Regex),
}

impl Matcher {
    /// Whether this holds for one reading of the path; the variables of templates are added to `captures`.
    pub fn matches<'a>(
        &'a self,
        seen: &Seen<'_>,
        path: &'a [u8],
        captures: &mut Vec<Capture<'a>>,
    ) -> bool {
        match self {
            Self::All(all) => all.iter().all(|one| one.matches(seen, path, captures)),
            Self::Any(any) => any.iter().any(|one| {
                let before = captures.len();
                let holds = one.matches(seen, path, captures);
                if !holds {
                    captures.truncate(before);
                }
                holds
            }),
            Self::Not(not) => !not.matches(seen, path, &mut Vec::new()),
            Self::Path(exact) => {
                without_trailing_slash(path) == without_trailing_slash(exact.as_bytes())
            }
            // `/admin/` is also for `/admin`, which most servers take for the same.
            Self::PathPrefix(prefix) => {
                path.starts_with(prefix.as_bytes())
                    || prefix.strip_suffix('/').map(str::as_bytes) == Some(path)
            }
            Self::PathTemplate(template) => template.matches(path, captures),
            Self::PathRegex(regex) => is_match(regex, path),
            // Methods are case-sensitive, but not every server knows.
            Self::Methods(methods) => methods
                .iter()
                .any(|method| seen.method.eq_ignore_ascii_case(method.as_bytes())),
            Self::Hosts(hosts) => hosts.iter().any(|host| host.matches(seen.host())),
            Self::Header(name, condition) => condition.holds(seen.headers().all(name)),
            Self::Query(name, condition) => condition.holds(fields::query(seen.target.query, name)),
        }
    }
}

impl Host {
    fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => host == exact.as_bytes(),
            Self::Under(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_bytes()),
        }
    }
}

impl Condition {
    fn holds<T: AsRef<[u8]>>(&self, mut values: impl Iterator<Item = T>) -> bool {
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::Equals(text) => values.any(|value| value.as_ref() == text.as_bytes()),
            Self::Prefix(text) => values.any(|value| value.as_ref().starts_with(text.as_bytes())),
            Self::Regex(regex) => values.any(|value| is_match(regex, value.as_ref())),
        }
    }
}

/// The regex library reads text: bytes that are not UTF-8 are seen as U+FFFD.
fn is_match(regex: &Regex, value: &[u8]) -> bool {
    regex.is_match(&String::from_utf8_lossy(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_without_case_port_and_final_dot() {
        for (authority, host) in [
            ("API.Example.com:8443", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("user@api.example.com", "api.example.com"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[broken", "[broken"),
            ("", ""),
            (":", ""),
        ] {
            assert_eq!(host_of(authority.as_bytes()), host.as_bytes());
        }
        let under = Host::Under(".example.com".to_owned());
        assert!(under.matches(b"a.example.com") && under.matches(b"a.b.example.com"));
        assert!(!under.matches(b"example.com") && !under.matches(b".example.com"));
        assert!(!under.matches(b"badexample.com"));
    }
}
