//! Claims, of metadata that a client has had a part in.

use super::*;
use crate::request::Headers;
use proptest::prelude::*;
use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use serde_json::json;

struct With(Vec<u8>, Headers);

impl Request for With {
    fn headers(&self) -> &Headers {
        &self.1
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        (path == ["metadata"]).then(|| self.0.clone())
    }
}

/// `None` for a claim that is missing, the kind `400` for one that is unreadable.
fn read(metadata: Vec<u8>, path: &[&str]) -> Option<(&'static str, String)> {
    let claim = Claim {
        payload: "payload".to_owned(),
        path: path.iter().map(|name| (*name).to_owned()).collect(),
    };
    match claim.read(&With(metadata, Headers::default())) {
        Found::Value(kind, value) => Some((kind, String::from_utf8_lossy(&value).into_owned())),
        Found::Missing => None,
        Found::Unreadable | Found::Ambiguous => Some(("400", String::new())),
    }
}

fn alice(kind: &'static str, text: &str) -> Option<(&'static str, String)> {
    Some((kind, text.to_owned()))
}

#[test]
fn a_claim_is_read_with_its_kind_and_wrong_kinds_name_nobody() {
    let claims = json!({ "sub": "alice", "number": 7, "negative": -1.5, "zero": -0.0, "flag": true, "empty": "",
        "null": null, "list": [1], "tenant": { "id": "t1" }, "": "unnamed" });
    assert_eq!(read(metadata("other", &claims), &["sub"]), None);
    let read = |path: &[&str]| read(metadata("payload", &claims), path);
    assert_eq!(read(&["sub"]), alice("", "alice"));
    assert_eq!(read(&["number"]), alice(":number", "7"));
    assert_eq!(read(&["negative"]), alice(":number", "-1.5"));
    assert_eq!(read(&["zero"]), alice(":number", "0"));
    assert_eq!(read(&["flag"]), alice(":bool", "true"));
    assert_eq!(read(&["tenant", "id"]), alice("", "t1"));
    for path in [
        &["empty"][..],
        &["null"],
        &["list"],
        &["tenant"],
        &["absent"],
        &["sub", "x"],
        &["tenant", "id", "x"],
    ] {
        assert_eq!(read(path), None, "{path:?}");
    }
}

#[test]
fn f7_bytes_that_are_no_metadata_are_unreadable_and_none_hold_no_claim() {
    for bytes in [&b"\xff"[..], b"\n\x01", b"\n\x03\n\x05a", b"\x0b"] {
        let found = read(bytes.to_vec(), &["sub"]);
        assert!(matches!(found, Some(("400", _))), "{bytes:?}");
    }
    for bytes in [&b""[..], b"\n\x00", b"\x10\x01", b"\n\x03\n\x01a"] {
        assert_eq!(read(bytes.to_vec(), &["sub"]), None, "{bytes:?}");
    }
    // Where a claim should be, but is cut off or of a wire type that is not its own.
    for claim in [&b"\x1a\x05al"[..], b"\x18\x01", b"\x12\x01a", b"\x19\x00"] {
        let payload = bytes(5, &map_entry("sub", claim));
        let found = read(
            map_entry(NAMESPACE, &map_entry("payload", &payload)),
            &["sub"],
        );
        assert!(matches!(found, Some(("400", _))), "{claim:?}");
    }
}

#[test]
fn f15_a_number_that_others_collapse_into_is_unreadable() {
    for (number, expected) in [
        (json!(9_007_199_254_740_991_i64), ":number"),
        (json!(9_007_199_254_740_992_i64), "400"),
        (json!(9_007_199_254_740_993_i64), "400"),
        (json!(-9_007_199_254_740_993_i64), "400"),
        (json!(1e300), "400"),
    ] {
        let metadata = metadata("payload", &json!({ "sub": number }));
        assert_eq!(read(metadata, &["sub"]).unwrap().0, expected, "{number}");
    }
}

#[test]
fn f18_neither_a_deep_claim_nor_a_byte_of_the_clients_hides_another_claim() {
    for depth in [32, 200] {
        let mut deep = json!(1);
        for _ in 0..depth {
            deep = json!({ "a": deep });
        }
        let claims = json!({ "a": deep, "sub": "alice", "z": [deep] });
        assert_eq!(
            read(metadata("payload", &claims), &["sub"]),
            alice("", "alice")
        );
    }
    // What `header_to_metadata` copied from a header.
    let copied = map_entry("envoy.lb", &map_entry("from-header", &bytes(3, b"\xff")));
    let ours = metadata("payload", &json!({ "sub": "alice" }));
    for metadata in [[&*copied, &ours].concat(), [&*ours, &copied].concat()] {
        assert_eq!(read(metadata, &["sub"]), alice("", "alice"));
    }
    // Of two entries of one name the last counts.
    let twice = [ours, metadata("payload", &json!({ "sub": "bob" }))].concat();
    assert_eq!(read(twice, &["sub"]), alice("", "bob"));
}

/// `envoy.config.core.v3.Metadata`, as another decoder reads it.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    filter_metadata: std::collections::BTreeMap<String, Struct>,
}

fn as_prost_reads(bytes: &[u8]) -> Option<Value> {
    let mut metadata = Metadata::decode(bytes).ok()?;
    let mut verified = metadata.filter_metadata.remove(NAMESPACE)?;
    match verified.fields.remove("payload")?.kind? {
        Kind::StructValue(mut payload) => payload.fields.remove("sub"),
        _ => None,
    }
}

/// A value of JSON with others in it.
fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|flag| json!(flag)),
        any::<i32>().prop_map(|number| json!(number)),
        any::<String>().prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        let names = proptest::sample::select(vec!["sub", "payload", "a", ""]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|list| json!(list)),
            proptest::collection::btree_map(names, inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f18_what_another_decoder_reads_is_read(one in json_value(), other in json_value()) {
        let claims = [json!({ "sub": one, "a": other }), json!({ "sub": other, "a": one }), one];
        let bytes: Vec<u8> = claims.iter().flat_map(|claims| metadata("payload", claims)).collect();
        let expected = match as_prost_reads(&bytes).and_then(|value| value.kind) {
            Some(Kind::StringValue(text)) if !text.is_empty() => Some(("", text)),
            Some(Kind::NumberValue(number)) => Some((":number", number.to_string())),
            Some(Kind::BoolValue(flag)) => Some((":bool", flag.to_string())),
            _ => None,
        };
        prop_assert_eq!(read(bytes, &["sub"]), expected);
    }

    #[test]
    fn f18_no_bytes_make_the_walk_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
        (place, cut) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let mut whole = metadata("payload", &json!({ "a": { "b": [1] }, "sub": "alice" }));
        let _ = read(bytes.clone(), &["sub"]);
        // Some of them in the place of others.
        whole.truncate(cut.index(whole.len()) + 1);
        bytes.truncate(3);
        let place = place.index(whole.len());
        whole.splice(place..whole.len().min(place + bytes.len()), bytes);
        let _ = read(whole, &["sub"]);
    }
}
