//! A request as the rules see it: read once, and its target in every reading that the upstream might give it.

use std::cell::{Cell, OnceCell};

use crate::matcher::{Holds, Matcher};
use crate::path::{Target, Upstream};
use crate::query::{self, Names, Parameters, Semicolon};
use crate::request::{Headers, Request};

/// How the rules of one configuration read requests.
#[derive(Debug)]
pub(crate) struct Reader {
    pub upstream: Upstream,
    /// `None`: not known, so every way counts.
    pub semicolon: Option<Semicolon>,
    /// The query parameters that some rule looks at.
    pub parameters: Names,
    /// How many matchers have their result remembered: [`Matcher::Once`].
    pub remembered: usize,
}

/// A request, read as far as all rules need it.
pub(crate) struct Seen<'r> {
    pub request: &'r dyn Request,
    pub method: &'r [u8],
    reader: &'r Reader,
    target: Target<'r>,
    ambiguous_query: bool,
    queries: OnceCell<Vec<Parameters<'r>>>,
    host: OnceCell<Vec<u8>>,
    /// What matchers that do not depend on the path have said, for each reading of the query. Not made as long as there
    /// is one reading, in which each is asked once anyway.
    remembered: OnceCell<Vec<Cell<Option<Holds>>>>,
}

/// One reading of a request's target.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'s, 'r> {
    pub seen: &'s Seen<'r>,
    /// Its place among all readings.
    pub place: usize,
    path: usize,
    query: usize,
}

impl<'r> Seen<'r> {
    pub fn new(request: &'r dyn Request, reader: &'r Reader) -> Self {
        let headers = request.headers();
        let target = Target::read(headers.first(":path"), &reader.upstream);
        Self {
            request,
            method: headers.first(":method"),
            reader,
            ambiguous_query: reader.semicolon.is_none()
                && !reader.parameters.is_empty()
                && query::is_ambiguous(target.query),
            target,
            queries: OnceCell::new(),
            host: OnceCell::new(),
            remembered: OnceCell::new(),
        }
    }

    pub fn headers(&self) -> &'r Headers {
        self.request.headers()
    }

    /// Every reading of the target.
    pub fn readings(&self) -> impl Iterator<Item = Reading<'_, 'r>> {
        // Never 0; a division must not be able to panic.
        let queries = self.count_queries().max(1);
        (0..self.target.count() * queries).map(move |place| Reading {
            seen: self,
            place,
            path: place / queries,
            query: place % queries,
        })
    }

    /// Only an ambiguous query has several readings: all others are read when a rule asks.
    fn count_queries(&self) -> usize {
        if self.ambiguous_query {
            self.queries().len()
        } else {
            1
        }
    }

    fn queries(&self) -> &[Parameters<'r>] {
        let Reader {
            parameters,
            semicolon,
            ..
        } = self.reader;
        self.queries
            .get_or_init(|| query::readings(self.target.query, parameters, *semicolon))
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

impl<'s> Reading<'s, '_> {
    /// The path; `None` if it has too many readings to tell.
    pub fn path(self) -> Option<&'s [u8]> {
        self.seen.target.reading(self.path)
    }

    /// Bytes of the path in all readings together.
    pub fn bytes(self) -> usize {
        self.seen.target.bytes()
    }

    /// The path as a key's part.
    pub fn canonical(self) -> Option<&'s [u8]> {
        self.seen.target.canonical(self.path)
    }

    /// The values of a query parameter that some rule names.
    pub fn parameter(self, name: &str) -> impl Iterator<Item = &'s [u8]> {
        let number = self.seen.reader.parameters.number(name.as_bytes());
        let parameters = self.seen.queries().get(self.query).into_iter().flatten();
        parameters
            .filter(move |(given, _)| Some(*given) == number)
            .map(|(_, value)| &**value)
    }

    /// What `matcher` says, which does not depend on the path, and is remembered under this number.
    pub fn remember(self, number: usize, matcher: &'s Matcher) -> Holds {
        let seen = self.seen;
        let queries = seen.count_queries();
        let ask = || matcher.matches(self, &mut Vec::new());
        if queries * seen.target.count() == 1 {
            return ask();
        }
        let remembered = seen.remembered.get_or_init(|| {
            let count = seen.reader.remembered * queries;
            std::iter::repeat_with(|| Cell::new(None))
                .take(count)
                .collect()
        });
        let Some(known) = remembered.get(number * queries + self.query) else {
            return ask();
        };
        let holds = known.get().unwrap_or_else(ask);
        known.set(Some(holds));
        holds
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
