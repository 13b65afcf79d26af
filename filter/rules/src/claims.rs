//! Values of the request's dynamic metadata: claims of a JWT that Envoy's `jwt_authn` filter has verified, and what other
//! filters have put there.
//!
//! This module fetches the whole metadata and parses it: Envoy returns a single value without its type, so the number 1
//! and a string of the same eight bytes would give the same key. Only the path to the claim is decoded, so neither
//! bytes that another filter copied from the client nor other claims of the token can make the claim unreadable.
//!
//! | message | its fields |
//! |---|---|
//! | `envoy.config.core.v3.Metadata` | 1: map of names to `Struct`, 2: map of names to `Any`, whose message is its field 2 |
//! | `envoy.data.ai.v3.TokenUsage` | 3, 4 and 5: input, output and all tokens, each a `UInt64Value` with field 1 |
//! | `google.protobuf.Struct` | 1: map of names to `Value` |
//! | `google.protobuf.Value` | one of 1: null, 2: number, 3: text, 4: bool, 5: `Struct`, 6: list |
//!
//! A map is a repeated message with 1: the name, and 2: the value; of several entries with one name the last one
//! counts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use sluicegate_protocol::MAX_COST;

use crate::amount::Found;
use crate::lookup::Lookup;
use crate::request::Request;
use crate::settle::number_in;

/// The metadata namespace of `jwt_authn`.
pub const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
/// Numbers are doubles here: from this size on, different integers have the same representation.
const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53

/// Which claim, or which other value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The namespace of the filter that wrote the metadata.
    pub namespace: String,
    /// The names that lead to it; at least one. A claim's begin with the provider's `payload_in_metadata`.
    pub path: Vec<String>,
}

impl Claim {
    /// The claim as text, with its type. Absent, null, empty, a list or an object count as missing.
    pub fn read(&self, request: &dyn Request) -> Lookup<'static> {
        let Some(metadata) = request.property(&["metadata"]) else {
            return Lookup::Missing;
        };
        let typed = |kind, text: String| Lookup::Value(kind, Cow::Owned(text.into_bytes()));
        match self.find(&metadata) {
            Ok(Some((3, BYTES, text))) => Lookup::of(text.to_vec()),
            Ok(Some((4, VARINT, flag))) => typed(
                ":bool",
                flag.iter().any(|byte| byte & 0x7f != 0).to_string(),
            ),
            Ok(Some((2, EIGHT, bits))) => match number(bits) {
                // Adding 0 turns -0 into 0.
                Some(number) if number.abs() < EXACT => {
                    typed(":number", (number + 0.0).to_string())
                }
                _ => Lookup::Unreadable,
            },
            Ok(Some((2..=4, ..))) | Err(Undecodable) => Lookup::Unreadable,
            Ok(_) => Lookup::Missing,
        }
    }

    /// The text at this place in metadata that has another name than the request's.
    pub fn text(&self, request: &dyn Request, metadata: &[&str]) -> Option<String> {
        self.word(&request.property(metadata)?)
    }

    /// The claim as a number of units: a whole number from 1, or the same as text. Nothing for anything else.
    pub fn units(&self, request: &dyn Request) -> Option<u64> {
        let metadata = request.property(&["metadata"])?;
        let text = match self.find(&metadata).ok()?? {
            // A number that is not whole has a point.
            (2, EIGHT, bits) => number(bits)?.to_string(),
            (3, BYTES, text) => String::from_utf8(text.to_vec()).ok()?,
            _ => return None,
        };
        let units: u64 = text.parse().ok()?;
        // In one spelling only: no sign, no leading zero.
        let is_plain = itoa::Buffer::new().format(units) == text;
        (is_plain && (1..MAX_COST).contains(&units)).then_some(units)
    }

    /// The number at this place in metadata; also a text that is one.
    pub fn number(&self, metadata: &[u8]) -> Found {
        let number = match self.find(metadata) {
            Ok(Some((2, EIGHT, bits))) => number(bits),
            Ok(Some((3, BYTES, text))) => number_in(text),
            Ok(None) => match self.token_usage(metadata) {
                Ok(None) => return Found::Nothing,
                Ok(tokens) => tokens,
                Err(Undecodable) => None,
            },
            Ok(Some((1, ..))) => return Found::Nothing,
            Ok(Some(_)) | Err(Undecodable) => None,
        };
        let number = number.filter(|number: &f64| !number.is_nan());
        number.map_or(Found::NoNumber, Found::Number)
    }

    /// The number in a message that Envoy's `ai_protocol_manager` has written in place of a struct, by the name of its field there.
    fn token_usage(&self, metadata: &[u8]) -> Result<Option<f64>, Undecodable> {
        let names = ["input_tokens", "output_tokens", "total_tokens"];
        let [name] = self.path.as_slice() else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|known| known == name) else {
            return Ok(None);
        };
        let inside = |message, number| match last(message, number..=number)? {
            Some((_, BYTES, inside)) => Ok(inside),
            _ => Err(Undecodable),
        };
        let Some(any) = entry(metadata, 2, &self.namespace)? else {
            return Ok(None);
        };
        let usage = inside(any, 2)?;
        let Some((_, BYTES, value)) = last(usage, index + 3..=index + 3)? else {
            return Ok(None);
        };
        let Some((_, VARINT, mut tokens)) = last(value, 1..=1)? else {
            return Ok(Some(0.0));
        };
        let tokens = prost::decode_length_delimiter(&mut tokens).or(Err(Undecodable))?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        Ok(Some(tokens as f64))
    }

    /// The text at this place in metadata.
    pub fn word(&self, metadata: &[u8]) -> Option<String> {
        match self.find(metadata).ok()?? {
            (3, BYTES, text) => String::from_utf8(text.to_vec()).ok(),
            _ => None,
        }
    }

    /// The field of the claim's `Value` that is set, if there is one.
    fn find<'a>(&self, metadata: &'a [u8]) -> Result<Option<Field<'a>>, Undecodable> {
        let fields = entry(metadata, 1, &self.namespace)?;
        let mut set = fields.map(|fields| (5, BYTES, fields));
        for name in &self.path {
            let Some((5, BYTES, fields)) = set else {
                return Ok(None);
            };
            let value = entry(fields, 1, name)?;
            set = value.map_or(Ok(None), |value| last(value, 1..=6))?;
        }
        Ok(set)
    }
}

/// Bytes that are not a protobuf message.
struct Undecodable;

/// Number, wire type and content.
type Field<'a> = (usize, usize, &'a [u8]);

// Wire types.
const VARINT: usize = 0;
const EIGHT: usize = 1;
const BYTES: usize = 2;
const FOUR: usize = 5;

fn number(bits: &[u8]) -> Option<f64> {
    bits.try_into().ok().map(f64::from_le_bytes)
}

/// The value of the last entry with this name in the map that is this field of a message.
fn entry<'a>(message: &'a [u8], map: usize, name: &str) -> Result<Option<&'a [u8]>, Undecodable> {
    let mut found = None;
    let mut rest = message;
    while let Some(field) = field(&mut rest)? {
        let (_, BYTES, entry) = field else {
            continue;
        };
        if field.0 != map {
            continue;
        }
        // An absent field is empty.
        let part = |number| match last(entry, number..=number)? {
            None => Ok(&[][..]),
            Some((_, BYTES, bytes)) => Ok(bytes),
            Some(_) => Err(Undecodable),
        };
        if part(1)? == name.as_bytes() {
            found = Some(part(2)?);
        }
    }
    Ok(found)
}

/// The last field of a message with one of these numbers.
fn last(
    message: &[u8],
    numbers: std::ops::RangeInclusive<usize>,
) -> Result<Option<Field<'_>>, Undecodable> {
    let mut found = None;
    let mut rest = message;
    while let Some(field) = field(&mut rest)? {
        if numbers.contains(&field.0) {
            found = Some(field);
        }
    }
    Ok(found)
}

/// Reads the next field; `None` at the end of the message.
fn field<'a>(rest: &mut &'a [u8]) -> Result<Option<Field<'a>>, Undecodable> {
    if rest.is_empty() {
        return Ok(None);
    }
    let varint = |rest: &mut &[u8]| prost::decode_length_delimiter(rest).or(Err(Undecodable));
    let tag = varint(rest)?;
    let length = match tag & 7 {
        VARINT => {
            let mut after = *rest;
            varint(&mut after)?;
            rest.len() - after.len()
        }
        EIGHT => 8,
        BYTES => varint(rest)?,
        FOUR => 4,
        // Groups, which do not exist in proto3.
        _ => return Err(Undecodable),
    };
    let content = rest.split_off(..length).ok_or(Undecodable)?;
    Ok(Some((tag >> 3, tag & 7, content)))
}

/// `envoy.config.core.v3.Metadata`.
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    filter_metadata: BTreeMap<String, Struct>,
}

/// The attribute `metadata` after `jwt_authn` has verified a token with these claims. For `explain`, which evaluates
/// rules for a made-up request.
pub fn metadata(payload: &str, claims: &serde_json::Value) -> Vec<u8> {
    let claims = [(payload.to_owned(), claims.clone())].into_iter().collect();
    metadata_of([(JWT_AUTHN, &claims)])
}

/// The attribute `metadata` with these values, by namespace.
pub fn metadata_of<'v>(namespaces: impl IntoIterator<Item = (&'v str, &'v Fields)>) -> Vec<u8> {
    let namespaces = namespaces.into_iter().map(|(name, fields)| {
        let fields = fields.iter().map(|(name, one)| (name.clone(), value(one)));
        let fields = fields.collect();
        (name.to_owned(), Struct { fields })
    });
    let filter_metadata = namespaces.collect();
    Metadata { filter_metadata }.encode_to_vec()
}

type Fields = serde_json::Map<String, serde_json::Value>;

fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Kind::NullValue(0).into(),
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => number.as_f64().unwrap_or_default().into(),
        Json::String(text) => text.clone().into(),
        Json::Array(list) => list.iter().map(value).collect::<Vec<_>>().into(),
        Json::Object(fields) => {
            let fields = fields.iter().map(|(name, one)| (name.clone(), value(one)));
            fields.collect::<BTreeMap<_, _>>().into()
        }
    }
}

#[cfg(test)]
mod tests;
