//! Claims of a JWT that Envoy's `jwt_authn` filter has verified and put into the request's dynamic metadata.
//!
//! The metadata is read whole and decoded here: Envoy hands a single value out without its type, so that the number
//! 1 and a string of the same eight bytes would be one subject.

use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use std::collections::BTreeMap;

use crate::request::Request;

/// Where `jwt_authn` puts what it has verified.
const NAMESPACE: &str = "envoy.filters.http.jwt_authn";

/// `envoy.config.core.v3.Metadata`, as far as it is needed.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    filter_metadata: BTreeMap<String, Struct>,
}

/// Which claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The provider's `payload_in_metadata`.
    pub payload: String,
    /// The names that lead to it; at least one.
    pub path: Vec<String>,
    /// What it is called in a key.
    pub name: String,
}

impl Claim {
    pub fn new(payload: String, path: Vec<String>) -> Self {
        // Joined so that no other path gives the same name.
        let mut name = "@jwt".to_owned();
        for segment in std::iter::once(&payload).chain(&path) {
            name.push('/');
            name.push_str(&segment.replace('%', "%25").replace('/', "%2F"));
        }
        Self {
            payload,
            path,
            name,
        }
    }

    /// The claim as text with the kind of value it is, or `None` where there is none that names somebody:
    /// absent, null, empty, a list or an object.
    pub fn read(&self, request: &dyn Request) -> Option<(&'static str, String)> {
        let metadata = Metadata::decode(&*request.property(&["metadata"])?).ok()?;
        let payload = metadata
            .filter_metadata
            .get(NAMESPACE)?
            .fields
            .get(&self.payload)?;
        let mut value: &Value = payload;
        for name in &self.path {
            let Some(Kind::StructValue(object)) = &value.kind else {
                return None;
            };
            value = object.fields.get(name)?;
        }
        match value.kind.as_ref()? {
            Kind::StringValue(text) if !text.is_empty() => Some(("", text.clone())),
            Kind::NumberValue(number) => Some((":number", number.to_string())),
            Kind::BoolValue(flag) => Some((":bool", flag.to_string())),
            _ => None,
        }
    }
}

/// The attribute `metadata` as it is after `jwt_authn` has verified a token with these claims. For people who want to
/// know what a request would ask.
pub fn metadata(payload: &str, claims: &serde_json::Value) -> Vec<u8> {
    fn value(json: &serde_json::Value) -> Value {
        use serde_json::Value as Json;
        let kind = match json {
            Json::Null => Kind::NullValue(0),
            Json::Bool(flag) => Kind::BoolValue(*flag),
            Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
            Json::String(text) => Kind::StringValue(text.clone()),
            Json::Array(list) => Kind::ListValue(prost_types::ListValue {
                values: list.iter().map(value).collect(),
            }),
            Json::Object(fields) => Kind::StructValue(Struct {
                fields: fields
                    .iter()
                    .map(|(name, field)| (name.clone(), value(field)))
                    .collect(),
            }),
        };
        Value { kind: Some(kind) }
    }
    let verified = Struct {
        fields: [(payload.to_owned(), value(claims))].into(),
    };
    Metadata {
        filter_metadata: [(NAMESPACE.to_owned(), verified)].into(),
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Headers;

    struct With(Vec<u8>, Headers);

    impl Request for With {
        fn headers(&self) -> &Headers {
            &self.1
        }
        fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
            (path == ["metadata"]).then(|| self.0.clone())
        }
    }

    fn structure(fields: Vec<(&str, Kind)>) -> Struct {
        let value = |kind| Value { kind: Some(kind) };
        Struct {
            fields: fields
                .into_iter()
                .map(|(name, kind)| (name.to_owned(), value(kind)))
                .collect(),
        }
    }

    fn claim(path: &[&str]) -> Claim {
        let path = path.iter().map(|name| (*name).to_owned()).collect();
        Claim::new("payload".to_owned(), path)
    }

    #[test]
    fn a_claim_is_read_with_its_kind_and_wrong_kinds_name_nobody() {
        let inner = structure(vec![("id", Kind::StringValue("t1".to_owned()))]);
        let payload = structure(vec![
            ("sub", Kind::StringValue("alice".to_owned())),
            ("number", Kind::NumberValue(7.0)),
            ("flag", Kind::BoolValue(true)),
            ("empty", Kind::StringValue(String::new())),
            ("null", Kind::NullValue(0)),
            ("list", Kind::ListValue(prost_types::ListValue::default())),
            ("tenant", Kind::StructValue(inner)),
        ]);
        let metadata = Metadata {
            filter_metadata: [(
                NAMESPACE.to_owned(),
                structure(vec![("payload", Kind::StructValue(payload))]),
            )]
            .into(),
        };
        let request = With(metadata.encode_to_vec(), Headers::default());
        let read = |path: &[&str]| claim(path).read(&request);
        assert_eq!(read(&["sub"]), Some(("", "alice".to_owned())));
        assert_eq!(read(&["number"]), Some((":number", "7".to_owned())));
        assert_eq!(read(&["flag"]), Some((":bool", "true".to_owned())));
        assert_eq!(read(&["tenant", "id"]), Some(("", "t1".to_owned())));
        for path in [
            &["empty"][..],
            &["null"],
            &["list"],
            &["tenant"],
            &["absent"],
            &["sub", "x"],
        ] {
            assert_eq!(read(path), None, "{path:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_metadata_hold_no_claim() {
        for bytes in [&b"\xff"[..], b"", b"\n\x01", b"\n\x03\n\x01a"] {
            let request = With(bytes.to_vec(), Headers::default());
            assert_eq!(claim(&["sub"]).read(&request), None);
        }
    }
}
