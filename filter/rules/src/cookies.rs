//! Cookies, from bytes that a client chooses.
//!
//! Upstreams disagree on the value of a cookie: PHP, Rails and Express decode percent escapes (some of them `+` too),
//! Python decodes `"\141"`, Go and Express only remove quotes. If each spelling gave another key, a client would have a
//! quota for each spelling of its session. So values are normalized: escapes are decoded until none is left, and quotes
//! and backslashes are removed. All spellings then share one quota, which is safe; two values that differ only in such
//! characters share one too, which is rare and harmless.

use std::borrow::Cow;

use crate::edges::{folded, stripped};
use crate::lookup::Lookup;
use crate::path::byte_of;
use crate::request::Headers;

/// The only value of a cookie in all `cookie` headers, normalized.
pub(crate) fn find<'a>(headers: &'a Headers, name: &str) -> Lookup<'a> {
    let mut found = None;
    let pairs = headers
        .all("cookie")
        .flat_map(|header| header.split(|byte| *byte == b';'));
    for pair in pairs {
        if hides(pair, name) {
            return Lookup::Ambiguous;
        }
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let given = parts.next().unwrap_or_default();
        let Some(value) = parts.next().filter(|_| is_named(given, name)) else {
            continue;
        };
        let value = match stripped(value) {
            [b'"', inner @ .., b'"'] => plain(&unescaped(inner)).into_owned().into(),
            // Express 4 removes the first and the last byte, whatever the last one is.
            [b'"', ..] => return Lookup::Ambiguous,
            value => plain(value),
        };
        if found.as_ref().is_some_and(|earlier| *earlier != value) {
            return Lookup::Ambiguous;
        }
        found = Some(value);
    }
    match found {
        Some(value) if !value.is_empty() => Lookup::Value("", value),
        _ => Lookup::Missing,
    }
}

/// Whether another cookie's value contains a cookie of this name after white space or a comma. Python's `http.cookies`,
/// WebOb and old Java servers begin a new cookie there, and others do not.
fn hides(pair: &[u8], name: &str) -> bool {
    // After the cookie's own name: the text between one `=` and the next ends with a name.
    let mut pieces = pair.split(|byte| *byte == b'=').skip(1).peekable();
    while let Some(piece) = pieces.next() {
        let mut words = piece
            .trim_ascii_end()
            .rsplitn(2, |byte| *byte == b',' || byte.is_ascii_whitespace());
        let word = words.next().unwrap_or_default();
        if pieces.peek().is_some() && words.next().is_some() && is_named(word, name) {
            return true;
        }
    }
    false
}

/// PHP decodes escapes in names too.
fn is_named(given: &[u8], name: &str) -> bool {
    folded(&plain(given)).eq(folded(&plain(name.as_bytes())))
}

/// Removes quotes and backslashes, replaces `+` by a space, and decodes percent escapes until none is left; incomplete
/// escapes stay. Linear: a decoded byte may complete an earlier escape, and is checked once more for that.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    let text = stripped(text);
    if !text
        .iter()
        .any(|byte| matches!(byte, b'%' | b'+' | b'"' | b'\\'))
    {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    for byte in text {
        let mut byte = *byte;
        loop {
            match byte {
                b'"' | b'\\' => break,
                b'+' => plain.push(b' '),
                byte => plain.push(byte),
            }
            let Some([b'%', high, low]) = plain.last_chunk() else {
                break;
            };
            let Some(decoded) = byte_of(*high, *low) else {
                break;
            };
            plain.truncate(plain.len().saturating_sub(3));
            byte = decoded;
        }
    }
    Cow::Owned(stripped(&plain).to_vec())
}

/// Decodes a quoted value like Python's `http.cookies`: `\141` is a byte in octal, `\x` is `x`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return read,
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                read.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                read.push(*byte);
                after
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `None` if the cookie is missing, `400` if it is ambiguous.
    fn cookie(headers: &[&[u8]], name: &str) -> Option<Vec<u8>> {
        let headers: Headers = headers.iter().map(|value| ("cookie", value)).collect();
        match find(&headers, name) {
            Lookup::Value(_, value) => Some(value.into_owned()),
            Lookup::Missing => None,
            Lookup::Ambiguous | Lookup::Unreadable => Some(b"400".to_vec()),
        }
    }

    #[test]
    fn a_cookie_is_found_in_any_of_the_headers() {
        let headers: [&[u8]; 2] = [b"a=1; session = \"x=y\" ;flag", b"b=2; session=x=y"];
        assert_eq!(cookie(&headers, "session").unwrap(), b"x=y");
        assert_eq!(cookie(&headers, "b").unwrap(), b"2");
        assert_eq!(cookie(&headers, "flag"), None);
        assert_eq!(cookie(&[b"session=", b"session=\"\""], "session"), None);
        let given = cookie(&[b"session=1; session=2"], "session").unwrap();
        assert_eq!(given, b"400");
    }

    #[test]
    fn every_spelling_of_a_cookie_is_one_subject() {
        let spellings = r#"session=a bc|session=a%20bc|session=%61+bc|session=%2561%2520bc|session="a\040bc"|
            session="\a\ \142c"|session="a bc"|SESSION=a bc|sess%69on=a bc|session%00x=a bc"#;
        for spelt in spellings.split('|').map(str::trim) {
            let found = cookie(&[spelt.as_bytes()], "session");
            assert_eq!(found.as_deref(), Some(&b"a bc"[..]), "{spelt}");
        }
        let beyond_ascii: [&[u8]; 4] = [
            b"session\xa0=a bc\x85\xa0",
            b"\xc2\xa0session=\"a bc\"\xe2\x80\x85",
            b"session=a bc%c2%a0",
            b"session=\xef\xbb\xbfa bc\xc2",
        ];
        for spelt in beyond_ascii {
            assert_eq!(cookie(&[spelt], "session").unwrap(), b"a bc");
        }
        assert_eq!(cookie(&[b"session.id=1"], "session_id").unwrap(), b"1");
        // Cookies that only some upstreams see, or that upstreams read differently.
        let doubtful = r#"a=b session=c|a=b,session = c|a="b session=c"|session="ab"#;
        for spelt in doubtful.split('|') {
            let found = cookie(&[spelt.as_bytes()], "session");
            assert_eq!(found.as_deref(), Some(&b"400"[..]), "{spelt}");
        }
        assert_eq!(cookie(&[b"a=session=c; b=x session"], "session"), None);
    }

    fn spelling() -> impl Strategy<Value = Vec<u8>> {
        let meaning = proptest::sample::select(b"%%%22205Cc61aA0+ \"x".to_vec());
        proptest::collection::vec(meaning, 0..24)
    }

    /// Decodes escapes once, like PHP and Express.
    fn once(text: &[u8], plus: bool) -> Vec<u8> {
        let mut read = Vec::new();
        let mut rest = text;
        while let Some((first, after)) = rest.split_first() {
            let escape = after.first_chunk().and_then(|[a, b]| byte_of(*a, *b));
            (rest, _) = match (first, escape) {
                (b'%', Some(byte)) => (&after[2..], read.push(byte)),
                (b'+', _) if plus => (after, read.push(b' ')),
                _ => (after, read.push(*first)),
            };
        }
        read
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever an upstream decodes has the same key as what was sent, so all spellings of it have too.
        #[test]
        fn no_upstream_decoding_gives_a_second_key(text in spelling()) {
            let stripped = match &*text {
                [b'"', inner @ .., b'"'] => inner,
                text => text,
            };
            for reading in [once(&text, false), once(&text, true), stripped.to_vec(), once(stripped, false),
                once(stripped, true), unescaped(stripped)] {
                prop_assert_eq!(plain(&reading), plain(&text));
            }
        }
    }
}
