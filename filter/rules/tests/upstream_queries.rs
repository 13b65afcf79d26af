//! However an upstream parses a query, a key from one of its parameters agrees with the upstream, or the request is
//! refused. Tested with hostile queries on small models, each after the source that it names. `upstreams/` does the
//! same for paths.

use crate::support::{Rules, asked, get};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// A name for `upstream_paths` and the values of the parameter `a`.
type Model = (&'static str, fn(&str) -> Vec<String>);

const MODELS: [Model; 3] = [("go", go), ("wsgi", python), ("strict", html4)];

/// Form decoding; `Err` has the text with broken escapes unchanged.
fn decode(text: &str) -> Result<String, String> {
    let mut pieces = text.split('%');
    let mut out = pieces.next().unwrap().replace('+', " ");
    let mut broken = false;
    for piece in pieces {
        let digits = piece.get(..2);
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        broken |= byte.is_none();
        out.push(byte.map_or('%', char::from));
        out += &piece[if byte.is_some() { 2 } else { 0 }..].replace('+', " ");
    }
    if broken { Err(out) } else { Ok(out) }
}

fn values<'a>(pairs: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lenient = |text: &str| decode(text).unwrap_or_else(|text| text);
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        // A space before a name is PHP's: see `readers`.
        .filter(|(name, _)| lenient(name).trim_start() == "a")
        .map(|(_, value)| lenient(value))
        .collect()
}

/// go/src/net/url/url.go, `parseQuery` (Go 1.17): a pair with a `;` or a broken escape is an error, which `Query`
/// drops.
fn go(query: &str) -> Vec<String> {
    let pairs = query.split('&');
    values(pairs.filter(|pair| !pair.contains(';') && decode(pair).is_ok()))
}

/// cpython/Lib/urllib/parse.py, `parse_qsl` (3.9.2): `&` alone separates; broken escapes are left.
fn python(query: &str) -> Vec<String> {
    values(query.split('&'))
}

/// HTML 4.01, B.2.2, and Python before 3.9.2: `;` separates too.
fn html4(query: &str) -> Vec<String> {
    values(query.split(['&', ';']))
}

fn rules(upstream: &str) -> Rules {
    let text = format!(
        r#"{{"sidecar":{{"cluster":"s"}},"upstream_paths":"{upstream}","rules":[{{"name":"r","when_unavailable":"allow",
            "checks":[{{"limit":"l","key":[{{"query":"a","plain":true}}],"when_missing":"deny"}}]}}]}}"#
    );
    Rules::parse(&text)
}

/// The expected question for a server that sees these values: a key, 403 for none, 400 for several different ones.
fn expected(values: &[String]) -> String {
    match values {
        [] => "403".to_owned(),
        [first, others @ ..] if others.iter().any(|other| other != first) => "400".to_owned(),
        [empty, ..] if empty.is_empty() => "403".to_owned(),
        [value, ..] => {
            let escape = |byte: u8| match byte {
                b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            };
            let value: String = value.bytes().map(escape).collect();
            format!("l @query/a={value} 1")
        }
    }
}

/// F6
#[test]
fn the_key_agrees_with_every_model_or_the_request_is_refused() {
    const PIECES: [&str; 16] = [
        "a=1", "a=2", "a", "&", "&", "&", ";", "=", "b=a", "1", "%61=1", "%3B", "%26", "%3D", "%z",
        "+",
    ];
    let mut runner = TestRunner::deterministic();
    let strict = rules("strict");
    let (mut agreed, mut refused) = (0, 0);
    for _ in 0..10_000 {
        let pieces = proptest::collection::vec(0..PIECES.len(), 1..7)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let query: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        let request = get(&format!("/?{query}"), &[]);
        let answer = asked(&strict, &request);
        for (name, model) in MODELS {
            let expected = [expected(&model(&query))];
            if answer == expected {
                agreed += 1;
            } else {
                refused += 1;
                assert_eq!(answer, ["400"], "{name}: {query}: {expected:?}");
            }
            if name != "strict" {
                assert_eq!(asked(&rules(name), &request), expected, "{name}: {query}");
            }
        }
    }
    assert!(agreed > 5 * refused, "{agreed} {refused}");
}
