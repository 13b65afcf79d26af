//! No upstream's reading gives a second key: whatever it reads of a cookie, header or query parameter is counted under
//! the key of that value, or the request is refused. Tested with hostile spellings on small models of readers that strip,
//! decode and fold, each after the source that it names.

use crate::support::{Rules, asked, checking, get};
use proptest::prelude::*;
use proptest::sample::select;

/// What a reader takes from a text, or `None` if it reads nothing or something that no model covers.
type Reader = fn(&[u8]) -> Option<Vec<u8>>;

/// Python's `str.strip` and Java's `strip` after Latin-1: gunicorn, wsgiref, Starlette, FastAPI.
fn latin1(text: &[u8]) -> Option<Vec<u8>> {
    Some(trimmed(
        text,
        |byte| matches!(byte, 9..=13 | 28..=32 | 0x85 | 0xa0),
    ))
}

/// JavaScript's `trim` after Latin-1: `cookie` before 1.0, `Headers.get`.
fn javascript(text: &[u8]) -> Option<Vec<u8>> {
    Some(trimmed(text, |byte| matches!(byte, 9..=13 | 32 | 0xa0)))
}

/// The same after UTF-8, with what only Java, PHP (`trim`) and JavaScript strip: Django, Rails, Spring.
fn unicode(text: &[u8]) -> Option<Vec<u8>> {
    let space = |char: char| char.is_whitespace() || char <= ' ' || char == '\u{feff}';
    let text = std::str::from_utf8(text).ok()?;
    Some(text.trim_matches(space).as_bytes().to_vec())
}

fn trimmed(text: &[u8], space: impl Fn(u8) -> bool) -> Vec<u8> {
    let from = text.iter().position(|byte| !space(*byte));
    let to = text.iter().rposition(|byte| !space(*byte));
    from.zip(to)
        .map_or(Vec::new(), |(from, to)| text[from..=to].to_vec())
}

const STRIPPING: [Reader; 3] = [latin1, javascript, unicode];

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escape = after
            .get(..2)
            .and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        (rest, _) = match (first, escape) {
            (b'%', Some(byte)) => (&after[2..], read.push(byte)),
            _ => (after, read.push(*first)),
        };
    }
    read
}

/// php/main/php_variables.c, `php_register_variable_ex`: a name ends at NUL, leading spaces are dropped, and some
/// characters become `_`.
fn php_name(name: &[u8]) -> Vec<u8> {
    let name = decoded(name);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = name.iter().skip_while(|byte| **byte == b' ');
    name.map(|byte| if b" .[".contains(byte) { b'_' } else { *byte })
        .collect()
}

/// The values of all pairs with this name.
fn of_name(
    text: &[u8],
    between: u8,
    is_named: impl Fn(&[u8]) -> bool,
    value: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Vec<Option<Vec<u8>>> {
    let pairs = text.split(|byte| *byte == between);
    let pairs = pairs.filter_map(|pair| {
        let middle = pair.iter().position(|byte| *byte == b'=')?;
        is_named(&pair[..middle]).then(|| value(&pair[middle + 1..]))
    });
    pairs.collect()
}

fn key(rules: &Rules, path: &str, header: (&str, &[u8])) -> String {
    asked(rules, &get(path, &[header])).concat()
}

/// What one of these readers takes has the key of the request, unless that is refused.
fn is_counted(
    key: &str,
    read: Vec<Option<Vec<u8>>>,
    of: impl Fn(&[u8]) -> String,
) -> Result<(), TestCaseError> {
    for value in read.into_iter().flatten().filter(|value| !value.is_empty()) {
        let expected = of(&value);
        let shown = value.escape_ascii();
        prop_assert!(
            key == "400" || key == expected,
            "{shown}: {key}, not {expected}"
        );
    }
    Ok(())
}

const EDGES: [&[u8]; 14] = [
    b" ",
    b"\t",
    b"\xa0",
    b"\x85",
    b"\xc2\xa0",
    b"\xc2\x85",
    b"\xe2\x80\x85",
    b"\xe2\x80\xa8",
    b"\xe3\x80\x80",
    b"\xef\xbb\xbf",
    b"\xe1\x9a\x80",
    b"\xc3\xa0",
    b"\xc2",
    b"\xe2\x80",
];

fn edge() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(select(&EDGES[..]), 0..4).prop_map(|pieces| pieces.concat())
}

fn escaped(text: &[u8]) -> String {
    text.iter().map(|byte| format!("%{byte:02x}")).collect()
}

/// A pair with white space around its name and value, raw or escaped.
fn pair(names: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let values = select(&["s", "s", "\"s\"", "%73", "d"][..]);
    let parts = (
        edge(),
        select(names),
        edge(),
        edge(),
        values,
        edge(),
        any::<[bool; 4]>(),
    );
    parts.prop_map(|(a, name, b, c, value, d, [w, x, y, z])| {
        let edge = |edge: Vec<u8>, escape| {
            if escape {
                escaped(&edge).into_bytes()
            } else {
                edge
            }
        };
        let (name, value) = (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        [
            edge(a, w),
            name,
            edge(b, x),
            b"=".to_vec(),
            edge(c, y),
            value,
            edge(d, z),
        ]
        .concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn of_a_cookie(pairs in proptest::collection::vec(pair(&["s.id", "s_id", "S_id", "s[id", "s%5fid", "s_id%00"]), 1..3)) {
        let rules = checking(r#"{"limit":"l","key":[{"cookie":"s_id","plain":true}],"when_missing":"deny"}"#);
        let header = pairs.join(&b';');
        let key_of = |header: &[u8]| key(&rules, "/", ("cookie", header));
        let mut read = Vec::new();
        for strip in STRIPPING {
            let is_named = |name: &[u8]| strip(name).as_deref() == Some(b"s_id");
            // Starlette and Django remove quotes, Express decodes too.
            let plain = |value: &[u8]| match strip(value)?.as_slice() {
                [b'"', inner @ .., b'"'] => Some(inner.to_vec()),
                value => Some(value.to_vec()),
            };
            read.extend(of_name(&header, b';', is_named, plain));
            read.extend(of_name(&header, b';', is_named, |value| Some(decoded(&plain(value)?))));
        }
        // PHP skips white space of the C locale before a cookie's name.
        let php = |name: &[u8]| php_name(name.trim_ascii_start()) == b"s_id";
        read.extend(of_name(&header, b';', php, |value| Some(decoded(value))));
        is_counted(&key_of(&header), read, |value| key_of(format!("s_id={}", escaped(value)).as_bytes()))?;
    }

    #[test]
    fn of_a_header(before in edge(), after in edge()) {
        let rules = checking(r#"{"limit":"l","key":[{"header":"x-key","plain":true}],"when_missing":"deny"}"#);
        let key_of = |value: &[u8]| key(&rules, "/", ("x-key", value));
        let value = [&before, &b"k"[..], &after].concat();
        is_counted(&key_of(&value), STRIPPING.map(|strip| strip(&value)).into(), key_of)?;
    }

    #[test]
    fn of_credentials(edges in [edge(), edge(), edge()], scheme in select(&["Bearer ", "bearer\t", "bearer", "BEARER"][..])) {
        let rules = checking(r#"{"limit":"l","key":[{"header":"authorization","plain":true}],"when_missing":"deny"}"#);
        let key_of = |value: &[u8]| key(&rules, "/", ("authorization", value));
        let [before, middle, after] = edges;
        let value = [&before, scheme.as_bytes(), &middle, b"t", &after].concat();
        // `split(None, 1)`: Flask-HTTPAuth and the like.
        let read = STRIPPING.map(|strip| {
            let value = strip(&value)?;
            let scheme = value.get(..6)?.eq_ignore_ascii_case(b"bearer");
            let token = strip(value.get(6..)?).filter(|_| scheme)?;
            (token.len() < value.len() - 6).then(|| [b"bearer ", &*token].concat())
        });
        is_counted(&key_of(&value), read.into(), key_of)?;
    }

    #[test]
    fn of_a_query(pairs in proptest::collection::vec(pair(&["api.key", "api_key", "API_key", "api[key", "%61pi_key%00x", "[api_key]"]), 1..3)) {
        let rules = checking(r#"{"limit":"l","key":[{"query":"api_key","plain":true}],"when_missing":"deny"}"#);
        let query: Vec<u8> = pairs.join(&b'&');
        // A target has no bytes beyond ASCII, and a space ends it.
        let escape = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte).to_string() } else { format!("%{byte:02x}") };
        let query: String = query.iter().map(escape).collect();
        let key_of = |query: &str| key(&rules, &format!("/?{query}"), ("x", b""));
        // Rack 2 and `qs` (Express) skip brackets around a name, ASP.NET ignores case.
        let php = |name: &[u8]| php_name(name) == b"api_key";
        let others = |name: &[u8]| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            name.trim_start_matches('[').trim_end_matches(']') == "api_key"
        };
        let value = |value: &[u8]| Some(decoded(value));
        let read = [of_name(query.as_bytes(), b'&', php, value), of_name(query.as_bytes(), b'&', others, value)].concat();
        is_counted(&key_of(&query), read, |value| key_of(&format!("api_key={}", escaped(value))))?;
    }
}
