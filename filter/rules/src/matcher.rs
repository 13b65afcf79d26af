//! Which requests a rule is for.
//!
//! A matcher looks at one reading of the target at a time (see `path.rs`). A rule is for a request when its whole matcher
//! holds for any one reading; so `not` cannot be stepped around by a path that reads differently elsewhere.

use regex_lite::Regex;

use crate::path::without_trailing_slash;
use crate::seen::Reading;
use crate::template::{Capture, Template};

/// Bytes that one regular expression looks at for one request: all values of a header or parameter, or all readings of
/// the path. `.*/(admin|internal|debug)(/.*)?` takes 0.5 ms for 4 KiB natively, and 6.7 ms for 57 KB.
const MAX_REGEX_INPUT: usize = 4 * 1024;

/// Whether a matcher holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    No,
    /// It cannot be said within the bounds on work, because this is too long.
    Unknown(TooLong),
}

/// What of a request is longer than a rule may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// Path or query.
    Target,
    Header,
}

/// Which requests a rule is for.
#[derive(Debug)]
pub(crate) enum Matcher {
    /// Each of these; none of them: any request.
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
    /// One that does not depend on the path: asked once for a request, under this number.
    Once(usize, Box<Matcher>),
}

/// What must be true of the path.
#[derive(Debug)]
pub(crate) enum OnPath {
    Exact(String),
    Prefix(String),
    Template(Template),
    Regex(Regex),
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

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

impl Holds {
    /// The first that is `decisive` decides, wherever it stands; else anything unknown does.
    fn unless(decisive: Self, all: impl Iterator<Item = Self>) -> Self {
        let mut holds = decisive.not();
        for one in all {
            if one == decisive {
                return decisive;
            }
            if matches!(one, Self::Unknown(_)) {
                holds = one;
            }
        }
        holds
    }

    fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            unknown @ Self::Unknown(_) => unknown,
        }
    }
}

impl Matcher {
    /// Whether this holds in one reading of the target; the variables of templates are added to `captures`.
    pub fn matches<'a>(
        &'a self,
        reading: Reading<'a, '_>,
        captures: &mut Vec<Capture<'a>>,
    ) -> Holds {
        let seen = reading.seen;
        match self {
            Self::All(all) => Holds::unless(
                Holds::No,
                all.iter().map(|one| one.matches(reading, captures)),
            ),
            Self::Any(any) => Holds::unless(
                Holds::Yes,
                any.iter().map(|one| {
                    let before = captures.len();
                    let holds = one.matches(reading, captures);
                    if holds != Holds::Yes {
                        captures.truncate(before);
                    }
                    holds
                }),
            ),
            Self::Not(not) => not.matches(reading, &mut Vec::new()).not(),
            Self::Once(number, matcher) => reading.remember(*number, matcher),
            Self::OnPath(on_path) => match reading.path() {
                Some(path) => on_path.matches(path, reading.bytes(), captures),
                None => Holds::Unknown(TooLong::Target),
            },
            Self::Methods(methods) => is_method(methods, seen.method).into(),
            Self::Hosts(hosts) => hosts.iter().any(|host| host.matches(seen.host())).into(),
            Self::Header(name, condition) => {
                condition.holds(|| seen.headers().all(name), TooLong::Header)
            }
            Self::Query(name, condition) => {
                condition.holds(|| reading.parameter(name), TooLong::Target)
            }
        }
    }

    /// Has the result of the largest matchers that do not depend on the path remembered; numbers them from `next` on.
    pub fn remembering(self, next: &mut usize) -> Self {
        if !self.is_about_path() {
            *next += 1;
            return Self::Once(*next - 1, Box::new(self));
        }
        let each = |list: Vec<Self>, next: &mut usize| {
            let list = list.into_iter().map(|one| one.remembering(next));
            list.collect()
        };
        match self {
            Self::All(all) => Self::All(each(all, next)),
            Self::Any(any) => Self::Any(each(any, next)),
            Self::Not(not) => Self::Not(Box::new(not.remembering(next))),
            on_path => on_path,
        }
    }

    fn is_about_path(&self) -> bool {
        match self {
            Self::All(list) | Self::Any(list) => list.iter().any(Self::is_about_path),
            Self::Not(one) | Self::Once(_, one) => one.is_about_path(),
            Self::OnPath(_) => true,
            Self::Methods(_) | Self::Hosts(_) | Self::Header(..) | Self::Query(..) => false,
        }
    }

    /// Adds the names of the query parameters that it looks at.
    pub fn parameters(&self, names: &mut Vec<String>) {
        match self {
            Self::All(list) | Self::Any(list) => {
                list.iter().for_each(|one| one.parameters(names));
            }
            Self::Not(one) | Self::Once(_, one) => one.parameters(names),
            Self::Query(name, _) => names.push(name.clone()),
            _ => {}
        }
    }
}

impl OnPath {
    /// Whether this holds for one reading of the path; `bytes` have all of them together.
    fn matches<'a>(
        &'a self,
        path: &'a [u8],
        bytes: usize,
        captures: &mut Vec<Capture<'a>>,
    ) -> Holds {
        match self {
            Self::Exact(exact) => {
                without_trailing_slash(path) == without_trailing_slash(exact.as_bytes())
            }
            // `/admin/` is also for `/admin`, which most servers take for the same.
            Self::Prefix(prefix) => {
                path.starts_with(prefix.as_bytes())
                    || prefix.strip_suffix('/').map(str::as_bytes) == Some(path)
            }
            Self::Template(template) => template.matches(path, captures),
            Self::Regex(_) if bytes > MAX_REGEX_INPUT => return Holds::Unknown(TooLong::Target),
            Self::Regex(regex) => is_match(regex, path),
        }
        .into()
    }
}

/// Whether a request's method is in a list of methods in capitals. Methods are case-sensitive, but not every server
/// knows. HEAD does the work of GET and hides the result: a list that has GET has HEAD too.
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
            Self::Under(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_bytes()),
        }
    }
}

impl Condition {
    fn holds<'v, I: Iterator<Item = &'v [u8]>>(
        &self,
        values: impl Fn() -> I,
        too_long: TooLong,
    ) -> Holds {
        match self {
            Self::Present => values().next().is_some(),
            Self::Absent => values().next().is_none(),
            Self::Equals(text) => values().any(|value| value == text.as_bytes()),
            Self::Prefix(text) => values().any(|value| value.starts_with(text.as_bytes())),
            Self::Regex(regex) => {
                // An empty value takes its time too.
                if values().map(|value| value.len() + 1).sum::<usize>() > MAX_REGEX_INPUT {
                    return Holds::Unknown(too_long);
                }
                values().any(|value| is_match(regex, value))
            }
        }
        .into()
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
    fn a_host_is_under_another_only_behind_a_dot() {
        let under = Host::Under(".example.com".to_owned());
        assert!(under.matches(b"a.example.com") && under.matches(b"a.b.example.com"));
        assert!(!under.matches(b"example.com") && !under.matches(b".example.com"));
        assert!(!under.matches(b"badexample.com"));
    }
}
