//! A request as the rules see it: parsed once, with every possible reading of its target.

use std::cell::{Cell, OnceCell};

use crate::config::terms::QuerySemicolon;
use crate::match_result::MatchResult;
use crate::path::{Target, Upstream};
use crate::query::{self, ParameterNames, QueryParameters};
use crate::request::{Headers, Request};

/// Methods that always have a value of their own in keys: what most interfaces consist of.
const COMMON_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// How to parse requests for the rules of one configuration.
#[derive(Debug)]
pub(crate) struct ViewOptions {
    pub upstream: Upstream,
    /// `None` if unknown: then every way is considered.
    pub semicolon: Option<QuerySemicolon>,
    /// The query parameters that any rule reads.
    pub parameters: ParameterNames,
    /// The methods that any rule lists, in capitals.
    pub methods: Vec<String>,
    /// Number of matchers whose result is kept: `Matcher::Memoized`.
    pub memo_slots: usize,
}

/// A request, parsed as far as the rules need it.
pub(crate) struct RequestView<'r> {
    pub request: &'r dyn Request,
    pub method: &'r [u8],
    view_options: &'r ViewOptions,
    target: Target<'r>,
    queries: OnceCell<Vec<QueryParameters<'r>>>,
    host: OnceCell<Vec<u8>>,
    /// Results of matchers that do not depend on the path, for each reading of the query. Not allocated if there is
    /// only one reading, because each matcher is then evaluated once anyway.
    memo: OnceCell<Vec<Cell<Option<MatchResult>>>>,
}

/// One possible reading of a request's target.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'s, 'r> {
    pub view: &'s RequestView<'r>,
    /// Index among all readings.
    pub index: usize,
    path: usize,
    query: usize,
}

impl<'r> RequestView<'r> {
    pub fn new(request: &'r dyn Request, view_options: &'r ViewOptions) -> Self {
        let headers = request.headers();
        let target = Target::read(headers.first(":path"), &view_options.upstream);
        Self {
            request,
            method: headers.first(":method"),
            view_options,
            target,
            queries: OnceCell::new(),
            host: OnceCell::new(),
            memo: OnceCell::new(),
        }
    }

    pub fn headers(&self) -> &'r Headers {
        self.request.headers()
    }

    /// Every reading of the target.
    pub fn readings(&self) -> impl Iterator<Item = Reading<'_, 'r>> {
        // Never 0, but a division must not be able to panic.
        let queries = self.count_queries().max(1);
        (0..self.target.count() * queries).map(move |index| Reading {
            view: self,
            index,
            path: index / queries,
            query: index % queries,
        })
    }

    /// A query that no rule reads has one reading.
    fn count_queries(&self) -> usize {
        if self.view_options.parameters.is_empty() {
            1
        } else {
            self.queries().len()
        }
    }

    fn queries(&self) -> &[QueryParameters<'r>] {
        let options = self.view_options;
        let names = &options.parameters;
        self.queries
            .get_or_init(|| query::readings(self.target.query, names, options.semicolon))
    }

    /// The method as a key component. All that no rule lists share one value: clients may invent others without end.
    pub fn method_of_key(&self) -> &'r [u8] {
        let listed = self.view_options.methods.iter().map(String::as_str);
        let known = COMMON_METHODS.into_iter().chain(listed);
        let mut known = known.map(str::as_bytes);
        known
            .find(|known| self.method.eq_ignore_ascii_case(known))
            .unwrap_or(b"other")
    }

    /// The host in lower case, without port or trailing dot.
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

impl<'s> Reading<'s, '_> {
    /// The path; `None` if it has too many readings.
    pub fn path(self) -> Option<&'s [u8]> {
        self.view.target.reading(self.path)
    }

    /// Length of all readings of the path together, in bytes.
    pub fn bytes(self) -> usize {
        self.view.target.bytes()
    }

    /// The path as a key component.
    pub fn canonical(self) -> Option<&'s [u8]> {
        self.view.target.canonical(self.path)
    }

    /// The values of a query parameter; any rule must name it.
    pub fn parameter(self, name: &str) -> impl Iterator<Item = &'s [u8]> {
        let number = self.view.view_options.parameters.number(name.as_bytes());
        let parameters = self.view.queries().get(self.query).into_iter().flatten();
        parameters
            .filter(move |(given, _)| Some(*given) == number)
            .map(|(_, value)| &**value)
    }

    /// The result of a matcher that does not depend on the path: `evaluate` is called once for each reading of the
    /// query, and its result kept in this slot.
    pub fn memoize(self, slot: usize, evaluate: impl FnOnce() -> MatchResult) -> MatchResult {
        let view = self.view;
        let queries = view.count_queries();
        if queries * view.target.count() == 1 {
            return evaluate();
        }
        let slots = view.view_options.memo_slots * queries;
        let memo = (view.memo).get_or_init(|| vec![Cell::new(None); slots]);
        let Some(known) = memo.get(slot * queries + self.query) else {
            return evaluate();
        };
        let result = known.get().unwrap_or_else(evaluate);
        known.set(Some(result));
        result
    }
}

fn host_of(authority: &[u8]) -> Vec<u8> {
    // Skip user information: the host follows the last `@`.
    let mut parts = authority.rsplit(|byte| *byte == b'@');
    let authority = parts.next().unwrap_or_default();
    let host = match authority {
        // An IPv6 literal has colons of its own.
        [b'[', ..] => authority.split_inclusive(|byte| *byte == b']').next(),
        _ => authority.split(|byte| *byte == b':').next(),
    };
    let host = host.unwrap_or_default();
    host.strip_suffix(b".").unwrap_or(host).to_ascii_lowercase()
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
    }
}
