//! Fields that accept two forms. Deserialized by hand: serde's untagged enums report every mistake inside as *did not
//! match any variant*, without the field's name.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use serde_json::Number;

use super::schema::{Amount, Cost, Limit, NamePath, Otherwise, UpstreamPaths, Weight};

macro_rules! visit {
    ($type:ident, $expecting:literal, { $($visits:tt)* }) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Either;
                impl<'de> Visitor<'de> for Either {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    $($visits)*
                }
                deserializer.deserialize_any(Either)
            }
        }
    };
}

visit!(
    Limit,
    "the name of a limit, or `{by: COMPONENT, map: {...}}`",
    {
        fn visit_str<E: Error>(self, name: &str) -> Result<Limit, E> {
            Ok(Limit::Name(name.to_owned()))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limit, A::Error> {
            Deserialize::deserialize(MapAccessDeserializer::new(map)).map(Limit::Tiers)
        }
    }
);

visit!(
    Cost,
    "a number from 1, `{table: [...]}`, `{header: NAME, max: N, trusted: true}` or `{reserve: ..., settle: {...}}`",
    {
        fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
            Ok(Cost::Constant(cost))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Cost, A::Error> {
            Deserialize::deserialize(MapAccessDeserializer::new(map)).map(Cost::Varying)
        }
    }
);

macro_rules! number_or {
    ($type:ident, $inner:ident, $expecting:literal) => {
        visit!($type, $expecting, {
            fn visit_u64<E: Error>(self, number: u64) -> Result<$type, E> {
                Ok($type::Number(number.into()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<$type, E> {
                Ok($type::Number(number.into()))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<$type, E> {
                let number = Number::from_f64(number);
                number
                    .map($type::Number)
                    .ok_or_else(|| E::custom("is not a number"))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$type, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map($type::$inner)
            }
        });
    };
}

number_or!(Amount, Told, "a number, or an object with its source");
number_or!(Weight, ByName, "a number, or `{by: ..., table: {...}}`");

visit!(Otherwise, "`keep`, `return` or a number of units", {
    fn visit_u64<E: Error>(self, units: u64) -> Result<Otherwise, E> {
        Ok(Otherwise::Units(units))
    }
    fn visit_str<E: Error>(self, word: &str) -> Result<Otherwise, E> {
        Ok(Otherwise::Word(word.to_owned()))
    }
});

visit!(NamePath, "a name, or a list of names", {
    fn visit_str<E: Error>(self, name: &str) -> Result<NamePath, E> {
        Ok(NamePath::Name(name.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<NamePath, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(NamePath::List)
    }
});

visit!(
    UpstreamPaths,
    "a name such as `go`, or an object with every choice",
    {
        fn visit_str<E: Error>(self, name: &str) -> Result<UpstreamPaths, E> {
            Deserialize::deserialize(StrDeserializer::new(name)).map(UpstreamPaths::Name)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<UpstreamPaths, A::Error> {
            Deserialize::deserialize(MapAccessDeserializer::new(map)).map(UpstreamPaths::Choices)
        }
    }
);
