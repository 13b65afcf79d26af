//! Fields that accept two forms. Deserialized by hand: serde's untagged enums report every mistake inside as *did not
//! match any variant*, without the field's name.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::schema::{Cost, Limit, NamePath, UpstreamPaths};

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
    "a number from 1, `{table: [...]}` or `{header: NAME, max: N, trusted: true}`",
    {
        fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
            Ok(Cost::Constant(cost))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Cost, A::Error> {
            Deserialize::deserialize(MapAccessDeserializer::new(map)).map(Cost::Varying)
        }
    }
);

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
