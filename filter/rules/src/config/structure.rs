//! YAML in Envoy's own configuration file reaches a plugin as a serialized `google.protobuf.Struct` (observed with
//! Envoy
//! 1.40; Istio and Envoy Gateway send JSON). This module converts it to the JSON value that it represents.

use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use serde_json::{Map, Number};

/// The value, or `None` if these bytes are something else.
pub fn read(bytes: &[u8]) -> Option<serde_json::Value> {
    // The tag of `fields`, a struct's only field, is a line feed. JSON may begin with one too; it then fails to decode.
    bytes
        .starts_with(b"\n")
        .then(|| Struct::decode(bytes).ok().map(object))?
}

fn object(structure: Struct) -> serde_json::Value {
    let mut fields = Map::new();
    // One by one: to collect them sorts them first, with 6 KB of code.
    for (name, field) in structure.fields {
        fields.insert(name, value(field));
    }
    serde_json::Value::Object(fields)
}

fn value(value: Value) -> serde_json::Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::NumberValue(number)) => self::number(number),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(self::value).collect(),
        Some(Kind::StructValue(structure)) => object(structure),
    }
}

/// Numbers of a struct are doubles; those of a configuration are nearly all integers.
pub(super) fn number(number: f64) -> serde_json::Value {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    if number.fract() == 0.0 && number.abs() < EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
        return (number as i64).into();
    }
    Number::from_f64(number).map_or(serde_json::Value::Null, serde_json::Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_becomes_the_json_that_it_stands_for() {
        let value = |kind| Value { kind: Some(kind) };
        let values = [5.0, -1.5, f64::NAN].map(|number| value(Kind::NumberValue(number)));
        let list = prost_types::ListValue {
            values: values.into(),
        };
        let fields = [("list".to_owned(), value(Kind::ListValue(list)))].into();
        let structure = Struct { fields };
        let read = read(&structure.encode_to_vec()).unwrap();
        assert_eq!(read, serde_json::json!({ "list": [5, -1.5, null] }));
    }

    #[test]
    fn json_and_noise_are_not_read_as_a_struct() {
        for bytes in [
            &b"{}"[..],
            b"\n{}",
            b"",
            b"\n",
            b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\n\x03\n\x01",
        ] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }
}
