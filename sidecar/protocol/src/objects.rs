//! Reads structs from JSON objects only. A derived `Deserialize` also reads a list, field by field in the order of the
//! declaration. No client sends that on purpose, and its meaning would change with each new field.
//!
//! Integers are those of JSON Schema: `2.0` and `2e0` are 2, as some languages write it.

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads the wrapped type with structs as maps, also within lists, maps and options.
pub(crate) struct Objects<T>(pub T);

/// Methods that forward to the wrapped reader.
macro_rules! as_is {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    as_is! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Objects(visitor))
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_u64(Whole(visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Objects(visitor))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_seq(Objects(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Objects(visitor))
    }

    // Types that no request contains or that, like a raw value, have their own rules.

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, length, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Objects<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Objects(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(map))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Objects(deserializer))
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        self.0.deserialize(Objects(deserializer))
    }
}

/// A visitor of numbers that reads `2.0` as 2.
struct Whole<V>(V);

/// Above it, neighbouring whole numbers are the same float.
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

impl<'de, V: Visitor<'de>> Visitor<'de> for Whole<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(f)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<V::Value, E> {
        self.0.visit_u64(number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<V::Value, E> {
        self.0.visit_i64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<V::Value, E> {
        if (0.0..MOST_EXACT).contains(&number) && number.fract() == 0.0 {
            // Checked above: the conversion is exact.
            self.0.visit_u64(number as u64)
        } else {
            self.0.visit_f64(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{read_decisions, read_give_backs, read_resets};

    /// Found by schemathesis: `[["per-key","k",5]]` was a check.
    #[test]
    fn a_list_is_not_an_object_wherever_an_object_belongs() {
        let check = r#"{"limit":"a","key":"k"}"#;
        for (decisions, says) in [
            (
                r#"[{"checks":[["a","k",5]]}]"#.to_owned(),
                "`decisions[0].checks[0]`: a list is not an object",
            ),
            (
                format!(r#"[[[{check}],false,false,null,null]]"#),
                "`decisions[0]`: a list is not an object",
            ),
        ] {
            let body = format!(r#"{{"decisions":{decisions}}}"#);
            let read = read_decisions(body.as_bytes()).unwrap();
            let message = &read.decisions[0].as_ref().unwrap_err().message;
            // Without the feature the field is not known.
            if cfg!(feature = "field-paths") {
                assert_eq!(message, says);
            }
            assert!(message.ends_with("a list is not an object"), "{message}");
        }
        for body in [
            format!(r#"[[{{"checks":[{check}]}}],[]]"#),
            format!(r#"{{"decisions":[{{"checks":[{check}]}}],"denied":[["a",null,null,1]]}}"#),
        ] {
            let problem = read_decisions(body.as_bytes()).unwrap_err();
            assert!(
                problem.message.ends_with("a list is not an object"),
                "{problem}"
            );
        }
        let read = read_give_backs(br#"{"give_backs":[["a","k","r",1]]}"#).unwrap();
        let problem = read[0].as_ref().unwrap_err();
        assert_eq!(problem.field.as_deref(), Some("give_backs[0]"));
        let read = read_resets(br#"{"resets":[["a","k"]]}"#).unwrap();
        assert!(read[0].is_err());
    }

    /// Found by schemathesis: JSON Schema calls 1.0 an integer.
    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for (number, read_as) in [
            ("5", Some(5)),
            ("5.0", Some(5)),
            ("5e2", Some(500)),
            ("0.0", Some(0)),
            ("5.5", None),
            ("-1.0", None),
            ("1e300", None),
            ("\"5\"", None),
        ] {
            let body = format!(
                r#"{{"decisions":[
                    {{"checks":[{{"limit":"a","key":"k","cost":{number}}}]}},
                    {{"checks":[{{"limit":"a","key":"k","quota":{number}}}]}}
                ]}}"#
            );
            let read = read_decisions(body.as_bytes()).unwrap();
            let check = |index: usize| Some(&read.decisions[index].as_ref().ok()?.checks[0]);
            assert_eq!(check(0).map(|check| check.cost), read_as, "{number}");
            assert_eq!(check(1).and_then(|check| check.quota), read_as, "{number}");
        }
    }

    #[test]
    fn all_else_is_read_as_before() {
        let body = br#" {"denied":[{"limit":"a","key":null,"count":2,"newer":[{"x":[1]}]}],"decisions":[
            {"checks":[{"limit":"\u0061","key":"k","cost":5},{"key":"k","limit":"b"}],"peek":true,"shadow":"r"}]} "#;
        let read = read_decisions(body).unwrap();
        let decision = read.decisions[0].as_ref().unwrap();
        let given = (decision.checks[0].limit.as_ref(), decision.checks[0].cost);
        assert_eq!(given, ("a", 5));
        assert_eq!(decision.shadow.as_deref(), Some("r"));
        let given = (read.denied[0].key.as_deref(), read.denied[0].count);
        assert_eq!(given, (None, 2));
        // An entry that cannot be read does not affect the others.
        let body = br#"{"decisions":[{"checks":[{"limit":"a","key":"k"}]},{"checks":7}]}"#;
        let read = read_decisions(body).unwrap();
        assert!(read.decisions[0].is_ok() && read.decisions[1].is_err());
    }
}
