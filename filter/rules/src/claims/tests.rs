//! Claims from metadata that a client has influenced.

use super::*;
use crate::request::Headers;
use proptest::prelude::*;
use serde_json::json;

struct FakeRequest(Vec<u8>, Headers);

impl Request for FakeRequest {
    fn headers(&self) -> &Headers {
        &self.1
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        (path == ["metadata"]).then(|| self.0.clone())
    }
}

fn claim(namespace: &str, path: &[&str]) -> Claim {
    Claim {
        namespace: namespace.to_owned(),
        path: path.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// `None` if the claim is missing, the type `400` if it is unreadable.
fn read(metadata: Vec<u8>, path: &[&str]) -> Option<(&'static str, String)> {
    let claim = claim(JWT_AUTHN, &[&["payload"], path].concat());
    match claim.read(&FakeRequest(metadata, Headers::default())) {
        Lookup::Value(kind, value) => Some((kind, String::from_utf8_lossy(&value).into_owned())),
        Lookup::Missing => None,
        Lookup::Unreadable | Lookup::Ambiguous => Some(("400", String::new())),
    }
}

fn map_entry(name: &str, value: &[u8]) -> Vec<u8> {
    bytes(1, &[bytes(1, name.as_bytes()), bytes(2, value)].concat())
}

/// An encoded field that contains bytes.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut field).unwrap();
    field.extend(content);
    field
}

fn alice(kind: &'static str, text: &str) -> Option<(&'static str, String)> {
    Some((kind, text.to_owned()))
}

#[test]
fn a_claim_is_read_with_its_type_and_unusable_types_count_as_missing() {
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
fn invalid_metadata_is_unreadable_and_empty_metadata_has_no_claim() {
    for bytes in [&b"\xff"[..], b"\n\x01", b"\n\x03\n\x05a", b"\x0b"] {
        let found = read(bytes.to_vec(), &["sub"]);
        assert!(matches!(found, Some(("400", _))), "{bytes:?}");
    }
    for bytes in [&b""[..], b"\n\x00", b"\x10\x01", b"\n\x03\n\x01a"] {
        assert_eq!(read(bytes.to_vec(), &["sub"]), None, "{bytes:?}");
    }
    // A claim that is truncated or has the wrong wire type.
    for claim in [&b"\x1a\x05al"[..], b"\x18\x01", b"\x12\x01a", b"\x19\x00"] {
        let payload = bytes(5, &map_entry("sub", claim));
        let metadata = map_entry(JWT_AUTHN, &map_entry("payload", &payload));
        let found = read(metadata, &["sub"]);
        assert!(matches!(found, Some(("400", _))), "{claim:?}");
    }
}

#[test]
fn a_number_beyond_double_precision_is_unreadable() {
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
fn neither_deep_nesting_nor_client_bytes_hide_another_claim() {
    for depth in [32, 200] {
        let mut deep = json!(1);
        for _ in 0..depth {
            deep = json!({ "a": deep });
        }
        let claims = json!({ "a": deep, "sub": "alice", "z": [deep] });
        let found = read(metadata("payload", &claims), &["sub"]);
        assert_eq!(found, alice("", "alice"));
    }
    // What `header_to_metadata` copied from a header.
    let copied = map_entry("envoy.lb", &map_entry("from-header", &bytes(3, b"\xff")));
    let ours = metadata("payload", &json!({ "sub": "alice" }));
    for metadata in [[&*copied, &ours].concat(), [&*ours, &copied].concat()] {
        assert_eq!(read(metadata, &["sub"]), alice("", "alice"));
    }
    // Of two entries with one name the last counts.
    let twice = [ours, metadata("payload", &json!({ "sub": "bob" }))].concat();
    assert_eq!(read(twice, &["sub"]), alice("", "bob"));
}

fn as_prost_reads(bytes: &[u8]) -> Option<Value> {
    let mut metadata = Metadata::decode(bytes).ok()?;
    let mut verified = metadata.filter_metadata.remove(JWT_AUTHN)?;
    match verified.fields.remove("payload")?.kind? {
        Kind::StructValue(mut payload) => payload.fields.remove("sub"),
        _ => None,
    }
}

/// A nested JSON value.
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
    fn claims_agree_with_another_decoder(one in json_value(), other in json_value()) {
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
}

#[test]
fn a_quota_is_a_whole_number_from_one_and_anything_else_is_none() {
    let units = |value: serde_json::Value| {
        let claim = claim(JWT_AUTHN, &["payload", "plan", "quota"]);
        let metadata = metadata("payload", &json!({ "plan": { "quota": value } }));
        claim.units(&FakeRequest(metadata, Headers::default()))
    };
    for number in [1, 5_000, 2_147_483_647_u64] {
        assert_eq!(units(json!(number)), Some(number));
    }
    assert_eq!(units(json!("5000")), Some(5_000));
    let none = json!([0, -5, 0.5, 5_000.5, 2_147_483_648_u64, 1e300, f64::MIN_POSITIVE, null, true, "", "0", "-1", "+5",
        "05", "5 ", "5.0", "5e3", "99999999999999999999", [5], { "quota": 5 }]);
    for value in none.as_array().unwrap() {
        assert_eq!(units(value.clone()), None, "{value}");
    }
}

#[test]
fn a_value_of_another_filter_is_read_from_its_own_namespace() {
    const EXT_AUTHZ: &str = "envoy.filters.http.ext_authz";
    let ext_authz = map_entry(
        EXT_AUTHZ,
        &map_entry("quota", &value(&json!(70)).encode_to_vec()),
    );
    let both = [ext_authz, metadata("payload", &json!({ "quota": 9 }))].concat();
    let request = FakeRequest(both, Headers::default());
    for (namespace, path, expected) in [
        (EXT_AUTHZ, &["quota"][..], Some(70)),
        (JWT_AUTHN, &["payload", "quota"], Some(9)),
        (JWT_AUTHN, &["quota"], None),
        ("other", &["quota"], None),
    ] {
        assert_eq!(claim(namespace, path).units(&request), expected);
    }
}
