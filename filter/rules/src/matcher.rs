//! Which requests a rule applies to.
//!
//! A matcher evaluates one reading of the target at a time (see `path.rs`). A rule applies to a request if its whole
//! matcher matches in any single reading, so that a path with several readings cannot bypass a `not`.

use std::rc::Rc;

use regex_lite::Regex;

use crate::claims::Claim;
use crate::lookup::Lookup;
use crate::match_result::{MatchResult, TooLong};
use crate::path::without_trailing_slash;
use crate::request_view::Reading;
use crate::template::{Capture, Template};

/// Most bytes that one regular expression evaluates for one request: all values of a header or parameter, or all
/// readings of the path together. `.*/(admin|internal|debug)(/.*)?` takes 0.5 ms for 4 KiB natively, and 6.7 ms for 57
/// KB.
const MAX_REGEX_INPUT: usize = 4 * 1024;

/// Which requests a rule applies to.
#[derive(Debug)]
pub(crate) enum Matcher {
    /// All of these; an empty list matches any request.
    All(Vec<Matcher>),
    /// At least one of these.
    Any(Vec<Matcher>),
    Not(Box<Matcher>),
    OnPath(OnPath),
    /// One of these, in capitals; see [`is_method`].
    Methods(Vec<String>),
    Hosts(Vec<Host>),
    Header(String, Condition),
    Query(String, Condition),
    Metadata(Claim, Condition),
    /// A matcher that does not depend on the path: evaluated once for each request, with its result in this memo slot.
    Memoized(usize, Box<Matcher>),
}

/// A condition on the path.
#[derive(Debug)]
pub(crate) enum OnPath {
    Exact(String),
    Prefix(String),
    Template(Template),
    Regex(Rc<Regex>),
}

/// `api.example.com`, or `*.example.com` for all of its subdomains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Exact(String),
    /// With its leading dot.
    SubdomainOf(String),
}

/// A condition on a header or query parameter. If it is sent several times, one value that passes is enough.
#[derive(Debug)]
pub(crate) enum Condition {
    Present,
    Absent,
    Equals(String),
    Prefix(String),
    Regex(Rc<Regex>),
}

impl Matcher {
    /// Evaluates the matcher in one reading of the target; adds the variables of templates to `captures`.
    pub fn matches<'a>(
        &'a self,
        reading: Reading<'a, '_>,
        captures: &mut Vec<Capture<'a>>,
    ) -> MatchResult {
        let view = reading.view;
        match self {
            Self::All(all) => MatchResult::unless(
                MatchResult::No,
                all.iter().map(|one| one.matches(reading, captures)),
            ),
            Self::Any(any) => MatchResult::unless(
                MatchResult::Yes,
                any.iter().map(|one| {
                    let before = captures.len();
                    let result = one.matches(reading, captures);
                    if result != MatchResult::Yes {
                        captures.truncate(before);
                    }
                    result
                }),
            ),
            Self::Not(not) => not.matches(reading, &mut Vec::new()).not(),
            Self::Memoized(slot, matcher) => {
                reading.memoize(*slot, || matcher.matches(reading, &mut Vec::new()))
            }
            Self::OnPath(on_path) => match reading.path() {
                Some(path) => on_path.matches(path, reading.bytes(), captures),
                None => MatchResult::Unknown(TooLong::Target),
            },
            Self::Methods(methods) => is_method(methods, view.method).into(),
            Self::Hosts(hosts) => hosts.iter().any(|host| host.matches(view.host())).into(),
            Self::Header(name, condition) => {
                condition.matches(|| view.headers().all(name), TooLong::Header)
            }
            Self::Query(name, condition) => {
                condition.matches(|| reading.parameter(name), TooLong::Target)
            }
            Self::Metadata(claim, condition) => {
                let value = match claim.read(view.request) {
                    Lookup::Value(_, value) => Some(value),
                    _ => None,
                };
                condition.matches(|| value.as_deref().into_iter(), TooLong::Header)
            }
        }
    }

    /// Has the result of the largest matchers that do not depend on the path remembered; numbers them from `next` on.
    pub fn memoized(self, next: &mut usize) -> Self {
        if !self.is_about_path() {
            *next += 1;
            return Self::Memoized(*next - 1, Box::new(self));
        }
        let each = |list: Vec<Self>, next: &mut usize| {
            let list = list.into_iter().map(|one| one.memoized(next));
            list.collect()
        };
        match self {
            Self::All(all) => Self::All(each(all, next)),
            Self::Any(any) => Self::Any(each(any, next)),
            Self::Not(not) => Self::Not(Box::new(not.memoized(next))),
            on_path => on_path,
        }
    }

    fn is_about_path(&self) -> bool {
        match self {
            Self::All(list) | Self::Any(list) => list.iter().any(Self::is_about_path),
            Self::Not(one) | Self::Memoized(_, one) => one.is_about_path(),
            Self::OnPath(_) => true,
            Self::Methods(_)
            | Self::Hosts(_)
            | Self::Header(..)
            | Self::Query(..)
            | Self::Metadata(..) => false,
        }
    }

    /// Visits the matchers that have no others inside.
    pub fn visit(&self, one: &mut dyn FnMut(&Self)) {
        match self {
            Self::All(list) | Self::Any(list) => list.iter().for_each(|inner| inner.visit(one)),
            Self::Not(inner) | Self::Memoized(_, inner) => inner.visit(one),
            leaf => one(leaf),
        }
    }
}

impl OnPath {
    /// Evaluates the condition on one reading of the path; `bytes` is the length of all readings together.
    fn matches<'a>(
        &'a self,
        path: &'a [u8],
        bytes: usize,
        captures: &mut Vec<Capture<'a>>,
    ) -> MatchResult {
        match self {
            Self::Exact(exact) => {
                without_trailing_slash(path) == without_trailing_slash(exact.as_bytes())
            }
            // `/admin/` includes `/admin`, which most servers treat the same.
            Self::Prefix(prefix) => {
                path.starts_with(prefix.as_bytes())
                    || prefix.strip_suffix('/').map(str::as_bytes) == Some(path)
            }
            Self::Template(template) => template.matches(path, captures),
            Self::Regex(_) if bytes > MAX_REGEX_INPUT => {
                return MatchResult::Unknown(TooLong::Target);
            }
            Self::Regex(regex) => is_match(regex, path),
        }
        .into()
    }
}

/// Whether a request's method is in a list of methods in capitals. Methods are case-sensitive, but not every server
/// obeys. HEAD costs the work of GET without its body, so a list with GET includes HEAD.
pub(crate) fn is_method(methods: &[String], given: &[u8]) -> bool {
    let is = |one: &str| given.eq_ignore_ascii_case(one.as_bytes());
    methods
        .iter()
        .any(|method| is(method) || (method == "GET" && is("HEAD")))
}

impl Host {
    fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => host == exact.as_bytes(),
            Self::SubdomainOf(suffix) => {
                host.len() > suffix.len() && host.ends_with(suffix.as_bytes())
            }
        }
    }
}

impl Condition {
    fn matches<'v, I: Iterator<Item = &'v [u8]>>(
        &self,
        values: impl Fn() -> I,
        too_long: TooLong,
    ) -> MatchResult {
        match self {
            Self::Present => values().next().is_some(),
            Self::Absent => values().next().is_none(),
            Self::Equals(text) => values().any(|value| value == text.as_bytes()),
            Self::Prefix(text) => values().any(|value| value.starts_with(text.as_bytes())),
            Self::Regex(regex) => {
                // Even an empty value takes time.
                if values().map(|value| value.len() + 1).sum::<usize>() > MAX_REGEX_INPUT {
                    return MatchResult::Unknown(too_long);
                }
                values().any(|value| is_match(regex, value))
            }
        }
        .into()
    }
}

/// The regex library needs text: invalid UTF-8 becomes U+FFFD.
fn is_match(regex: &Regex, value: &[u8]) -> bool {
    regex.is_match(&String::from_utf8_lossy(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdomain_is_separated_from_its_domain_by_a_dot() {
        let under = Host::SubdomainOf(".example.com".to_owned());
        assert!(under.matches(b"a.example.com") && under.matches(b"a.b.example.com"));
        assert!(!under.matches(b"example.com") && !under.matches(b".example.com"));
        assert!(!under.matches(b"badexample.com"));
    }
}
