//! Deserializes a JSON value into the types of `schema.rs` and reports the field of every mistake.
//!
//! `serde_path_to_error` does the same for any deserializer, but took 108 KB of the VM's code, a fifth of the whole.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// What is wrong, and in which field; the first reader that the error passes through adds the field.
#[derive(Debug)]
pub struct ReadError {
    pub field: Option<String>,
    pub why: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ReadError {}

impl Error for ReadError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self {
            field: None,
            why: why.to_string(),
        }
    }
}

impl ReadError {
    fn within(mut self, path: &Path<'_>) -> Self {
        self.field.get_or_insert_with(|| path.to_string());
        self
    }
}

/// The path of a value, as a list from the value to the root.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Entry(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Entry(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Deserializes a whole value.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, ReadError> {
    T::deserialize(Reader {
        value,
        path: Path::Root,
    })
}

struct Reader<'a> {
    value: &'a Value,
    path: Path<'a>,
}

impl Reader<'_> {
    // Not generic, so that the VM has it once.
    fn unexpected(&self, expected: &dyn Expected) -> ReadError {
        let found = match self.value {
            Value::Null => Unexpected::Other("null"),
            Value::Bool(flag) => Unexpected::Bool(*flag),
            Value::Number(_) => Unexpected::Other("a number"),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Other("a list"),
            Value::Object(_) => Unexpected::Other("an object"),
        };
        ReadError::invalid_type(found, expected).within(&self.path)
    }

    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let Value::Number(number) = self.value else {
            return Err(self.unexpected(&visitor));
        };
        let read = if let Some(whole) = number.as_u64() {
            visitor.visit_u64(whole)
        } else if let Some(whole) = number.as_i64() {
            visitor.visit_i64(whole)
        } else {
            visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
        };
        read.map_err(|error: ReadError| error.within(&self.path))
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::String(text) => visitor
                .visit_str(text)
                .map_err(|error: ReadError| error.within(&self.path)),
            _ => Err(self.unexpected(&visitor)),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Array(values) => visitor
                .visit_seq(ListReader {
                    values: values.iter().enumerate(),
                    path: &self.path,
                })
                .map_err(|error: ReadError| error.within(&self.path)),
            _ => Err(self.unexpected(&visitor)),
        }
    }

    fn object<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Object(fields) => visitor
                .visit_map(ObjectReader {
                    fields: fields.iter(),
                    current: None,
                    path: &self.path,
                })
                .map_err(|error: ReadError| error.within(&self.path)),
            _ => Err(self.unexpected(&visitor)),
        }
    }
}

macro_rules! read_as {
    ($($method:ident => $reader:ident),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            self.$reader(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    read_as! {
        deserialize_u8 => number, deserialize_u64 => number, deserialize_str => text, deserialize_string => text,
        deserialize_identifier => text, deserialize_seq => list, deserialize_map => object
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Null | Value::Bool(_) => Err(self.unexpected(&visitor)),
            Value::Number(_) => self.number(visitor),
            Value::String(_) => self.text(visitor),
            Value::Array(_) => self.list(visitor),
            Value::Object(_) => self.object(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Bool(flag) => visitor.visit_bool(*flag),
            _ => Err(self.unexpected(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.object(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let (name, content) = match self.value {
            Value::String(name) => (name, None),
            Value::Object(fields) if fields.len() == 1 => match fields.iter().next() {
                Some((name, content)) => (name, Some(content)),
                None => return Err(self.unexpected(&visitor)),
            },
            _ => return Err(self.unexpected(&visitor)),
        };
        visitor
            .visit_enum(EnumReader {
                name,
                content,
                path: &self.path,
            })
            .map_err(|error: ReadError| error.within(&self.path))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 u16 u32 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct ignored_any
    }
}

struct ListReader<'a, I> {
    values: I,
    path: &'a Path<'a>,
}

impl<'a, 'de, I: Iterator<Item = (usize, &'a Value)>> SeqAccess<'de> for ListReader<'a, I> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let Some((index, value)) = self.values.next() else {
            return Ok(None);
        };
        let path = Path::Entry(self.path, index);
        seed.deserialize(Reader { value, path }).map(Some)
    }
}

struct ObjectReader<'a> {
    fields: serde_json::map::Iter<'a>,
    current: Option<(&'a str, &'a Value)>,
    path: &'a Path<'a>,
}

impl<'de> MapAccess<'de> for ObjectReader<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        let Some((name, value)) = self.fields.next() else {
            return Ok(None);
        };
        self.current = Some((name, value));
        // Report an unknown field as a mistake in that field.
        let key: serde::de::value::StrDeserializer<'_, ReadError> =
            serde::de::IntoDeserializer::into_deserializer(name.as_str());
        seed.deserialize(key)
            .map(Some)
            .map_err(|error: ReadError| error.within(&Path::Field(self.path, name)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let Some((name, value)) = self.current.take() else {
            return Err(ReadError::custom("a value without a name"));
        };
        let path = Path::Field(self.path, name);
        seed.deserialize(Reader { value, path })
    }
}

struct EnumReader<'a> {
    name: &'a str,
    content: Option<&'a Value>,
    path: &'a Path<'a>,
}

impl<'a, 'de> EnumAccess<'de> for EnumReader<'a> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, EnumReader<'a>), ReadError> {
        let name: serde::de::value::StrDeserializer<'_, ReadError> =
            serde::de::IntoDeserializer::into_deserializer(self.name);
        seed.deserialize(name).map(|variant| (variant, self))
    }
}

impl<'de> VariantAccess<'de> for EnumReader<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match self.content {
            None => Ok(()),
            Some(_) => Err(ReadError::custom(format_args!(
                "`{}` takes no value: write it alone",
                self.name
            ))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        match self.content {
            Some(value) => seed.deserialize(Reader {
                value,
                path: Path::Field(self.path, self.name),
            }),
            None => Err(ReadError::custom(format_args!(
                "`{0}` needs a value: `{{{0}: ...}}`",
                self.name
            ))),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, ReadError> {
        Err(ReadError::custom(
            "variants with several values are not supported",
        ))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ReadError> {
        Err(ReadError::custom("variants with fields are not supported"))
    }
}
