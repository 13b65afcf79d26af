//! The request's target: every possible reading of its path, and its query.
//!
//! `/v1/videos`, `/v1//videos`, `/v1/%76ideos`, `/v1/x/../videos`, `/v1;a=b/videos` and `/v1%2Fvideos` can all reach
//! the same upstream code; which of them do depends on the upstream (see `path/readings.rs`). Rules are evaluated in
//! one reading after the other, and a rule applies if it matches in any of them. A plain path has one reading, itself,
//! and needs no allocation.

mod readings;

use std::borrow::Cow;
use std::cell::OnceCell;

pub(crate) use readings::{DOTS, Step, Upstream, byte_of, coarsest_segment};

/// A request's target, parsed.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    path: Path<'a>,
    /// The coarsest reading of each reading, in the same order.
    canonical: OnceCell<Vec<Vec<u8>>>,
    /// What follows the first `?`.
    pub query: &'a [u8],
}

#[derive(Debug)]
enum Path<'a> {
    /// All upstreams read it in the same way, unchanged.
    Plain(Cow<'a, [u8]>),
    /// Empty if there are too many, or if they are too long.
    Readings(Vec<Cow<'a, [u8]>>),
}

impl<'a> Target<'a> {
    /// Parses `:path`. CONNECT has none, and `OPTIONS *` has no path in it: they become `/` and `/*`.
    pub fn read(target: &'a [u8], upstream: &Upstream) -> Self {
        let (path, query) = split_once(target, b'?');
        // A fragment is not for the server; by default Envoy refuses or removes it.
        let path = split_once(path, b'#').0;
        let query = split_once(query, b'#').0;
        let path = without_origin(path);
        let path = if is_plain(path) {
            Path::Plain(path.into())
        } else {
            let path: Cow<'_, [u8]> = if path.starts_with(b"/") {
                path.into()
            } else {
                [b"/", path].concat().into()
            };
            Path::Readings(match upstream {
                Upstream::Known(steps) => vec![readings::after(steps, &path).into()],
                Upstream::Unknown => readings::all(path).unwrap_or_default(),
            })
        };
        Self {
            path,
            canonical: OnceCell::new(),
            query,
        }
    }

    /// Every reading of the path; none if it has too many.
    fn readings(&self) -> &[Cow<'a, [u8]>] {
        match &self.path {
            Path::Plain(path) => std::slice::from_ref(path),
            Path::Readings(readings) => readings,
        }
    }

    /// Number of readings; a path with too many of them counts as one.
    pub fn count(&self) -> usize {
        self.readings().len().max(1)
    }

    /// The path in one reading; `None` if it has too many readings.
    pub fn reading(&self, index: usize) -> Option<&[u8]> {
        self.readings().get(index).map(AsRef::as_ref)
    }

    /// Length of all readings together, in bytes.
    pub fn bytes(&self) -> usize {
        self.readings().iter().map(|path| path.len()).sum()
    }

    /// One reading as a key component: its coarsest form.
    ///
    /// A key must be the same for all spellings of one resource. One of the readings identifies the resource, depending
    /// on the upstream, and this value is a function of the reading only. So if all readings give the same value, it
    /// depends on the resource only, whichever reading is the upstream's; otherwise the request is refused. A coarse
    /// function is safe (at worst two resources share a quota), and makes the readings of ordinary paths agree, such as
    /// `/a%20b`, `/a//b` and `/a;v=1`.
    pub fn canonical(&self, index: usize) -> Option<&[u8]> {
        let path: &[u8] = match &self.path {
            Path::Plain(path) => path,
            Path::Readings(readings) => {
                let coarsest = || readings.iter().map(|path| readings::coarsest(path));
                let canonical = self.canonical.get_or_init(|| coarsest().collect());
                canonical.get(index)?
            }
        };
        Some(without_trailing_slash(path))
    }
}

/// Removes a trailing slash, which does not distinguish resources; `/` itself stays.
pub(crate) fn without_trailing_slash(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        path => path,
    }
}

/// What precedes the first byte of this value, and what follows it.
pub(crate) fn split_once(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let mut parts = text.splitn(2, |byte| *byte == at);
    (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    )
}

/// Removes the origin of an absolute form (`http://host/path`). Envoy does so in HTTP/1, but not always in HTTP/2.
fn without_origin(path: &[u8]) -> &[u8] {
    let Some(scheme) = path.windows(3).position(|three| three == b"://") else {
        return path;
    };
    let (before, after) = path.split_at(scheme);
    if before.is_empty() || !before.iter().all(u8::is_ascii_alphanumeric) {
        return path;
    }
    let authority = after.get(3..).unwrap_or_default();
    let end = authority.iter().position(|byte| *byte == b'/');
    end.and_then(|end| authority.get(end..)).unwrap_or(b"/")
}

/// Whether all servers read the path in the same way, unchanged.
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.starts_with(b"/")
        && path.iter().all(|byte| {
            let plain = match byte {
                b'%' | b';' | b'\\' => false,
                b'/' | b'.' => before != b'/',
                _ => true,
            };
            before = *byte;
            plain
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::terms::{EncodedSlash, Escapes};

    fn readings(path: &str) -> Vec<String> {
        let target = Target::read(path.as_bytes(), &Upstream::Unknown);
        (0..target.count())
            .map(|index| String::from_utf8_lossy(target.reading(index).unwrap()).into_owned())
            .collect()
    }

    #[test]
    fn a_plain_path_has_one_reading() {
        for path in ["/", "/a", "/a/b.c/d-e_f~g", "/a/", "/a..b"] {
            assert_eq!(readings(path), [path]);
            assert!(is_plain(path.as_bytes()));
        }
    }

    #[test]
    fn an_ordinary_path_has_few_readings() {
        for (path, expected) in [
            ("/.well-known/x", &["/.well-known/x"][..]),
            ("/a%20b", &["/a%20b", "/a b"]),
            ("/a//b", &["/a//b", "/a/b"]),
            ("/a;v=1/b", &["/a;v=1/b", "/a/b"]),
            ("/a/../b", &["/a/../b", "/b"]),
            ("/a%2fb", &["/a%2fb", "/a/b", "/a%2Fb"]),
            ("/a\\b", &["/a\\b", "/a/b"]),
        ] {
            assert_eq!(readings(path), expected, "{path}");
        }
    }

    #[test]
    fn every_spelling_of_a_path_has_its_plain_form_among_its_readings() {
        let spellings = r"
            /v1//videos //v1/videos /v1/./videos /v1/x/../videos /../v1/videos /v1/x/%2e%2E/videos /v1/%76ideos
            /v1/%2576ideos /v1/%%37%36ideos /v1%2fvideos /v1%252Fvideos /v1\videos /v1%5cvideos /v1;a=b/videos
            /v1/videos;jsessionid=1 /v1/x/..;/videos /v1%3Ba/videos http://elsewhere/v1/videos v1/videos
            /v1/videos?x=/../ /v1/videos#x
        ";
        for path in spellings.split_whitespace() {
            let found = readings(path);
            assert!(found.iter().any(|r| r == "/v1/videos"), "{path}: {found:?}");
        }
    }

    #[test]
    fn broken_escapes_stay_unchanged() {
        for path in ["/a%", "/a%2", "/a%zz", "/%%%"] {
            assert_eq!(readings(path), [path]);
        }
    }

    #[test]
    fn targets_without_a_path_get_one() {
        assert_eq!(readings(""), ["/"]);
        assert_eq!(readings("*"), ["/*"]);
        assert_eq!(readings("http://host"), ["/"]);
        assert_eq!(readings("/.."), ["/..", "/"]);
    }

    #[test]
    fn the_query_is_what_stands_behind_the_first_question_mark() {
        assert_eq!(Target::read(b"/a?b?c#d", &Upstream::Unknown).query, b"b?c");
        assert_eq!(Target::read(b"/a", &Upstream::Unknown).query, b"");
    }

    #[test]
    fn a_path_of_nested_escapes_is_read_in_linear_time() {
        let path = format!("/{}", "%25".to_owned() + &"25".repeat(1_000_000));
        let repeatedly = Step::Decode(Escapes::Repeatedly, EncodedSlash::Separator);
        let target = Target::read(path.as_bytes(), &Upstream::Known(vec![repeatedly]));
        assert_eq!(target.canonical(0), Some(&b"/%"[..]));
    }
}
