//! Values of the request's dynamic metadata: claims of a JWT that Envoy's `jwt_authn` filter has verified, and what other
//! filters have put there.
//!
//! This module fetches the whole metadata and parses it: Envoy returns a single value without its type, so the number 1
//! and a string of the same eight bytes would give the same key. Only the path to the claim is decoded, so neither
//! bytes that another filter copied from the client nor other claims of the token can make the claim unreadable.
//!
//! | message | its fields |
//! |---|---|
//! | `envoy.config.core.v3.Metadata` | 1: map of names to `Struct` |
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

use crate::lookup::Lookup;
use crate::request::Request;

/// The metadata namespace of `jwt_authn`.
pub(crate) const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
/// Numbers are doubles here: from this size on, different integers have the same representation.
const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53

/// Which claim, or which other value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Of the filter that has put it there.
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
        match self.find(&metadata) {
            Err(Undecodable) => Lookup::Unreadable,
            Ok(Some((3, Wire::Bytes(text)))) => Lookup::of(text.to_vec()),
            Ok(Some((4, Wire::Varint(flag)))) => {
                Lookup::Value(":bool", Cow::Owned((flag != 0).to_string().into_bytes()))
            }
            Ok(Some((2, Wire::Eight(bits)))) => match f64::from_le_bytes(bits) {
                // Adding 0 turns -0 into 0.
                number if number.abs() < EXACT => Lookup::Value(
                    ":number",
                    Cow::Owned((number + 0.0).to_string().into_bytes()),
                ),
                _ => Lookup::Unreadable,
            },
            Ok(Some((2..=4, _))) => Lookup::Unreadable,
            Ok(_) => Lookup::Missing,
        }
    }

    /// The text at this place in metadata that has another name than the request's.
    pub fn text(&self, request: &dyn Request, metadata: &[&str]) -> Option<Vec<u8>> {
        let metadata = request.property(metadata)?;
        match self.find(&metadata).ok()?? {
            (3, Wire::Bytes(text)) => Some(text.to_vec()),
            _ => None,
        }
    }

    /// The claim as a number of units: a whole number from 1, or the same as text. Nothing for anything else.
    pub fn units(&self, request: &dyn Request) -> Option<u64> {
        let metadata = request.property(&["metadata"])?;
        let units = match self.find(&metadata).ok()?? {
            (2, Wire::Eight(bits)) => {
                let number = f64::from_le_bytes(bits);
                if number.fract() != 0.0 || !(1.0..EXACT).contains(&number) {
                    return None;
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole and in range"
                )]
                let units = number as u64;
                units
            }
            // In one spelling only: no sign, no leading zero.
            (3, Wire::Bytes(text)) => {
                let text = std::str::from_utf8(text).ok()?;
                let units: u64 = text.parse().ok()?;
                (itoa::Buffer::new().format(units) == text).then_some(units)?
            }
            _ => return None,
        };
        (1..MAX_COST).contains(&units).then_some(units)
    }

    /// The field of the claim's `Value` that is set, if there is one.
    fn find<'a>(&self, metadata: &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, Undecodable> {
        let fields = entry(metadata, &self.namespace)?;
        let mut set = fields.map(|fields| (5, Wire::Bytes(fields)));
        for name in &self.path {
            let Some((5, Wire::Bytes(fields))) = set else {
                return Ok(None);
            };
            let value = entry(fields, name)?;
            set = value.map_or(Ok(None), |value| last(value, 1..=6))?;
        }
        Ok(set)
    }
}

/// Bytes that are not a protobuf message.
struct Undecodable;

/// The value of a field, by wire type.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Eight([u8; 8]),
    Bytes(&'a [u8]),
    Four,
}

/// The value of the last entry with this name in the map that is field 1 of a message.
fn entry<'a>(message: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, Undecodable> {
    let mut found = None;
    let mut rest = message;
    while let Some((number, value)) = field(&mut rest)? {
        let (1, Wire::Bytes(entry)) = (number, value) else {
            continue;
        };
        // An absent field is empty.
        let part = |number| match last(entry, number..=number)? {
            None => Ok(&[][..]),
            Some((_, Wire::Bytes(bytes))) => Ok(bytes),
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
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<Option<(u64, Wire<'_>)>, Undecodable> {
    let mut found = None;
    let mut rest = message;
    while let Some(field) = field(&mut rest)? {
        if numbers.contains(&field.0) {
            found = Some(field);
        }
    }
    Ok(found)
}

/// Reads the number and value of the next field; `None` at the end of the message.
fn field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, Undecodable> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => Wire::Eight(
            *rest
                .split_off(..8)
                .and_then(<[u8]>::first_chunk)
                .ok_or(Undecodable)?,
        ),
        2 => {
            let length = usize::try_from(varint(rest)?).or(Err(Undecodable))?;
            Wire::Bytes(rest.split_off(..length).ok_or(Undecodable)?)
        }
        5 => rest.split_off(..4).map(|_| Wire::Four).ok_or(Undecodable)?,
        // Groups, which do not exist in proto3.
        _ => return Err(Undecodable),
    };
    Ok(Some((tag >> 3, wire)))
}

fn varint(rest: &mut &[u8]) -> Result<u64, Undecodable> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = rest.split_off_first().ok_or(Undecodable)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Undecodable)
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
    let fields = [(payload.to_owned(), value(claims))].into();
    let filter_metadata = [(JWT_AUTHN.to_owned(), Struct { fields })].into();
    Metadata { filter_metadata }.encode_to_vec()
}

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
