//! JSON in which no field stands twice: `serde_json` would take the last one without a word. A whole number is an integer,
//! however it is written: a program that copies a configuration may make `1.0` of `1`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::structure;

/// A value of JSON from all of these bytes.
pub fn read(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).map(|Strict(value)| value)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(flag.into())
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(number.into())
            }
            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(number.into())
            }
            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(structure::number(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(Strict(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Value::Array(values))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut values = Map::new();
                while let Some((name, Strict(value))) = map.next_entry::<String, _>()? {
                    if values.contains_key(&name) {
                        return Err(Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    values.insert(name, value);
                }
                Ok(Value::Object(values))
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_unchanged_and_duplicate_fields_are_refused() {
        let text = r#"{"a":[1,-2,0.5,null,true,"x"],"b":{}}"#;
        assert_eq!(read(text.as_bytes()).unwrap().to_string(), text);
        assert_eq!(read(b"[1.0,1e2,1.5]").unwrap().to_string(), "[1,100,1.5]");
        let error = read(br#"{"a":{"b":1,"b":2}}"#).unwrap_err().to_string();
        assert!(error.contains("duplicate field `b`"), "{error}");
        assert!(read(b"{} {}").is_err());
    }
}
