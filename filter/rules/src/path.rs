//! The request's target: its path in every reading that an upstream might give it, and its query.
//!
//! `/v1/videos`, `/v1//videos`, `/v1/%76ideos`, `/v1/x/../videos`, `/v1;a=b/videos` and `/v1%2Fvideos` can all reach
//! the same upstream code, and which of them do is the upstream's affair. So a path has several *readings*, and a rule
//! is for a request if it matches any of them: whichever way the upstream reads the path, the rule has been applied.
//! A plain path has one reading, which is itself, and costs no allocation.

use std::borrow::Cow;

/// A request's target, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// The most lenient reading: what all spellings of one resource have in common. It is what keys are made of.
    lenient: Cow<'a, [u8]>,
    /// The other readings, where the path is one that servers differ about.
    others: Vec<Cow<'a, [u8]>>,
    /// What stands behind the first `?`.
    pub query: &'a [u8],
}

impl<'a> Target<'a> {
    /// Takes `:path` apart. CONNECT has none, `OPTIONS *` no path: they are read as `/` and `/*`.
    pub fn read(target: &'a [u8]) -> Self {
        let (path, query) = split_once(target, b'?');
        // Behind `#` nothing is the server's; Envoy refuses or cuts it, unless told otherwise.
        let path = split_once(path, b'#').0;
        let query = split_once(query, b'#').0;
        let path = without_origin(path);
        if is_plain(path) {
            return Self {
                lenient: Cow::Borrowed(path),
                others: Vec::new(),
                query,
            };
        }
        let path: Cow<'a, [u8]> = if path.starts_with(b"/") {
            Cow::Borrowed(path)
        } else {
            Cow::Owned([b"/", path].concat())
        };
        let lenient = Reading::LENIENT.read(&path);
        let mut others: Vec<Cow<'a, [u8]>> = Vec::new();
        for reading in Reading::OTHERS {
            let read = reading.read(&path);
            if read != lenient && !others.iter().any(|other| **other == *read) {
                others.push(Cow::Owned(read));
            }
        }
        if *path != *lenient && !others.iter().any(|other| **other == *path) {
            others.push(path);
        }
        Self {
            lenient: Cow::Owned(lenient),
            others,
            query,
        }
    }

    /// All readings, the most lenient first.
    pub fn readings(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&*self.lenient).chain(self.others.iter().map(|other| &**other))
    }

    /// The path as a key's part: the most lenient reading, so that no other spelling gives another key.
    pub fn canonical(&self) -> &[u8] {
        without_trailing_slash(&self.lenient)
    }
}

/// A trailing slash does not tell two resources apart, except that `/` stays itself.
pub(crate) fn without_trailing_slash(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => rest,
        path => path,
    }
}

fn split_once(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let mut parts = text.splitn(2, |byte| *byte == at);
    (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    )
}

/// Absolute form (`http://host/path`): Envoy takes it apart in HTTP/1, and does not always in HTTP/2.
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

/// Whether all servers read the path in the same way, as it is.
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

/// One way to read a path. All resolve dot segments and merge slashes.
#[derive(Clone, Copy)]
struct Reading {
    /// `%2F`, `%5C` and `\` separate segments like `/`.
    all_slashes: bool,
    /// What stands behind a `;` in a segment does not belong to it.
    cut_parameters: bool,
    /// Escapes are read until none is left, as by a chain of servers that each read them once.
    repeatedly: bool,
}

impl Reading {
    const LENIENT: Self = Self {
        all_slashes: true,
        cut_parameters: true,
        repeatedly: true,
    };
    const OTHERS: [Self; 4] = [
        Self {
            all_slashes: false,
            ..Self::LENIENT
        },
        Self {
            cut_parameters: false,
            ..Self::LENIENT
        },
        Self {
            all_slashes: false,
            cut_parameters: false,
            ..Self::LENIENT
        },
        // By the letter of RFC 3986.
        Self {
            all_slashes: false,
            cut_parameters: false,
            repeatedly: false,
        },
    ];

    fn read(self, path: &[u8]) -> Vec<u8> {
        let decoded = self.decode(path);
        let mut segments: Vec<&[u8]> = Vec::new();
        // Whether the last segment says that the path is a folder's: `/a/`, `/a/.` and `/a/b/..` do.
        let mut folder = false;
        let separator = |byte: &u8| *byte == b'/' || (self.all_slashes && *byte == b'\\');
        for segment in decoded.split(separator) {
            let segment = if self.cut_parameters {
                split_once(segment, b';').0
            } else {
                segment
            };
            folder = matches!(segment, b"" | b"." | b"..");
            match segment {
                b"" | b"." => {}
                b".." => {
                    segments.pop();
                }
                segment => segments.push(segment),
            }
        }
        let mut read = Vec::with_capacity(decoded.len());
        for segment in &segments {
            read.push(b'/');
            read.extend(*segment);
        }
        if folder || read.is_empty() {
            read.push(b'/');
        }
        read
    }

    /// Reads percent-escapes. What is not a whole escape stays as it is.
    fn decode(self, path: &[u8]) -> Vec<u8> {
        let mut decoded: Vec<u8> = Vec::with_capacity(path.len());
        // What stands before this is settled and is no part of a later escape.
        let mut settled = 0;
        for byte in path {
            decoded.push(*byte);
            // An escape may be made of bytes that were escaped themselves (`%2541`), so the end of what has been read
            // is looked at again. Each turn takes two bytes away, so all turns together are linear.
            while let Some(escaped) = escape_at_end(&decoded, settled) {
                decoded.truncate(decoded.len() - 3);
                match escaped {
                    b'/' | b'\\' if !self.all_slashes => {
                        decoded.extend(if escaped == b'/' { b"%2F" } else { b"%5C" });
                        settled = decoded.len();
                    }
                    escaped => {
                        decoded.push(escaped);
                        if !self.repeatedly {
                            settled = decoded.len();
                        }
                    }
                }
            }
        }
        decoded
    }
}

fn escape_at_end(text: &[u8], settled: usize) -> Option<u8> {
    let [b'%', high, low] = text.get(settled..)?.last_chunk::<3>()? else {
        return None;
    };
    byte_of(*high, *low)
}

/// The byte that two hexadecimal digits stand for.
pub(crate) fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        Target::read(path.as_bytes())
            .readings()
            .map(|reading| String::from_utf8_lossy(reading).into_owned())
            .collect()
    }

    #[test]
    fn a_plain_path_has_one_reading() {
        for path in ["/", "/a", "/a/b.c/d-e_f~g", "/a/", "/a..b"] {
            assert_eq!(readings(path), [path]);
        }
    }

    #[test]
    fn every_spelling_of_a_path_has_its_plain_form_among_its_readings() {
        for path in [
            "/v1//videos",
            "//v1/videos",
            "/v1/./videos",
            "/v1/x/../videos",
            "/../v1/videos",
            "/v1/x/%2e%2E/videos",
            "/v1/%76ideos",
            "/v1/%2576ideos",
            "/v1/%%37%36ideos",
            "/v1%2fvideos",
            "/v1%252Fvideos",
            "/v1\\videos",
            "/v1%5cvideos",
            "/v1;a=b/videos",
            "/v1/videos;jsessionid=1",
            "/v1/x/..;/videos",
            "/v1%3Ba/videos",
            "http://elsewhere/v1/videos",
            "v1/videos",
            "/v1/videos?x=/../",
            "/v1/videos#x",
        ] {
            let found = readings(path);
            assert!(found.iter().any(|r| r == "/v1/videos"), "{path}: {found:?}");
        }
    }

    #[test]
    fn a_segment_with_an_escaped_slash_is_also_read_as_one_segment() {
        assert_eq!(readings("/v1/a%2Fb")[..2], ["/v1/a/b", "/v1/a%2Fb"]);
        assert!(readings("/v1;x/a%2fb").contains(&"/v1/a%2Fb".to_owned()));
    }

    #[test]
    fn what_cannot_be_read_stays_as_it_is() {
        for path in ["/a%", "/a%2", "/a%zz", "/%%%"] {
            assert!(readings(path).contains(&path.to_owned()), "{path}");
        }
    }

    #[test]
    fn targets_without_a_path_have_one() {
        assert_eq!(readings(""), ["/"]);
        assert_eq!(readings("*")[0], "/*");
        assert_eq!(readings("http://host"), ["/"]);
        assert_eq!(readings("/.."), ["/", "/.."]);
    }

    #[test]
    fn the_query_is_what_stands_behind_the_first_question_mark() {
        assert_eq!(Target::read(b"/a?b?c#d").query, b"b?c");
        assert_eq!(Target::read(b"/a").query, b"");
    }

    #[test]
    fn a_path_of_nested_escapes_is_read_in_linear_time() {
        let path = format!("/{}", "%25".to_owned() + &"25".repeat(1_000_000));
        let target = Target::read(path.as_bytes());
        assert_eq!(target.canonical(), b"/%");
    }
}
