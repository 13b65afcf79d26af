//! Cookies, out of bytes that a client has chosen.
//!
//! Upstreams disagree on what a cookie says: PHP, Rails and Express read percent escapes (some of them `+` too),
//! Python reads `"\141"`, Go and Express only take the quotes away. If each spelling were a key, a client would have an
//! allowance for each spelling of its own session. So a value is brought to one form, in which all escapes are read
//! until none is left and no quote or backslash remains. Several spellings then share one allowance, which is safe;
//! two values that differ only in such characters share one too, which is rare and harmless.

use std::borrow::Cow;

use crate::found::Found;
use crate::path::byte_of;
use crate::request::Headers;

/// The one value of a cookie, in its one form, over all `cookie` headers.
pub(crate) fn find<'a>(headers: &'a Headers, name: &str) -> Found<'a> {
    let mut found = None;
    let pairs = headers
        .all("cookie")
        .flat_map(|header| header.split(|byte| *byte == b';'));
    for pair in pairs {
        if hides(pair, name) {
            return Found::Ambiguous;
        }
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let given = parts.next().unwrap_or_default().trim_ascii();
        let Some(value) = parts.next().filter(|_| is_named(given, name)) else {
            continue;
        };
        let value = match value.trim_ascii() {
            [b'"', inner @ .., b'"'] => plain(&unescaped(inner)).into_owned().into(),
            // Express 4 takes the first and the last byte away, whatever the last one is.
            [b'"', ..] => return Found::Ambiguous,
            value => plain(value),
        };
        if found.as_ref().is_some_and(|earlier| *earlier != value) {
            return Found::Ambiguous;
        }
        found = Some(value);
    }
    match found {
        Some(value) if !value.is_empty() => Found::Value("", value),
        _ => Found::Missing,
    }
}

/// Whether a cookie of this name stands behind white space or a comma in another one's value, where Python's
/// `http.cookies`, WebOb and old Java servers begin a new cookie and others do not.
fn hides(pair: &[u8], name: &str) -> bool {
    // After the cookie's own name: what stands between one `=` and the next ends with a name.
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

/// PHP reads escapes in names, ends them at a zero byte and takes `.`, `[` and a space for `_`; ASP.NET ignores case.
fn is_named(given: &[u8], name: &str) -> bool {
    let fold = |byte: &u8| match byte {
        b'.' | b'[' | b' ' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    let (given, name) = (plain(given), plain(name.as_bytes()));
    let given = given.split(|byte| *byte == 0).next().unwrap_or_default();
    given.iter().map(fold).eq(name.iter().map(fold))
}

/// Without quotes and backslashes, `+` as a space, and percent escapes read until none is left; what is no whole escape
/// stays. Linear: a byte that an escape gives may complete an escape before it, and is looked at once more for that.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    let text = text.trim_ascii();
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
    Cow::Owned(plain.trim_ascii().to_vec())
}

/// What stands between quotes, as Python's `http.cookies` reads it: `\141` is a byte in octal, `\x` is `x`.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut read = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Cow::Owned(read),
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

    /// `None` for a cookie that is missing, `400` for one that is ambiguous.
    fn cookie(headers: &[&[u8]], name: &str) -> Option<Vec<u8>> {
        let headers: Headers = headers.iter().map(|value| ("cookie", value)).collect();
        match find(&headers, name) {
            Found::Value(_, value) => Some(value.into_owned()),
            Found::Missing => None,
            Found::Ambiguous | Found::Unreadable => Some(b"400".to_vec()),
        }
    }

    #[test]
    fn a_cookie_is_found_in_any_of_the_headers() {
        let headers: [&[u8]; 2] = [b"a=1; session = \"x=y\" ;flag", b"b=2; session=x=y"];
        assert_eq!(cookie(&headers, "session").unwrap(), b"x=y");
        assert_eq!(cookie(&headers, "b").unwrap(), b"2");
        assert_eq!(cookie(&headers, "flag"), None);
        assert_eq!(cookie(&[b"session=", b"session=\"\""], "session"), None);
        assert_eq!(
            cookie(&[b"session=1; session=2"], "session").unwrap(),
            b"400"
        );
    }

    #[test]
    fn f6_however_a_cookie_is_spelt_it_is_one_subject() {
        for spelt in [
            "session=a bc",
            "session=a%20bc",
            "session=%61+bc",
            "session=%2561%2520bc",
            "session=\"a\\040bc\"",
            "session=\"\\a\\ \\142c\"",
            "session=\"a bc\"",
            "SESSION=a bc",
            "sess%69on=a bc",
            "session%00x=a bc",
        ] {
            assert_eq!(
                cookie(&[spelt.as_bytes()], "session").unwrap(),
                b"a bc",
                "{spelt}"
            );
        }
        assert_eq!(cookie(&[b"session.id=1"], "session_id").unwrap(), b"1");
        // What some upstreams see and others do not, or read as one of many values.
        for spelt in [
            "a=b session=c",
            "a=b,session = c",
            "a=\"b session=c\"",
            "session=\"ab",
        ] {
            assert_eq!(
                cookie(&[spelt.as_bytes()], "session").unwrap(),
                b"400",
                "{spelt}"
            );
        }
        assert_eq!(cookie(&[b"a=session=c; b=x session"], "session"), None);
    }

    fn spelling() -> impl Strategy<Value = Vec<u8>> {
        let meaning = proptest::sample::select(b"%%%22205Cc61aA0+ \"x".to_vec());
        proptest::collection::vec(meaning, 0..24)
    }

    /// Reads escapes once, as PHP and Express do.
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

        /// Whatever an upstream reads is the same subject as what was sent, so two spellings of it are too.
        #[test]
        fn f6_no_upstreams_reading_gives_a_second_key(text in spelling()) {
            let stripped = match &*text {
                [b'"', inner @ .., b'"'] => inner,
                text => text,
            };
            for reading in [once(&text, false), once(&text, true), stripped.to_vec(), once(stripped, false),
                once(stripped, true), unescaped(stripped).into_owned()] {
                prop_assert_eq!(plain(&reading), plain(&text));
            }
        }
    }
}
