//! Claims of a JWT that Envoy's `jwt_authn` filter has verified and put into the request's dynamic metadata.
//!
//! The metadata is read whole and walked here: Envoy hands a single value out without its type, so that the number
//! 1 and a string of the same eight bytes would be one subject. Only what leads to the claim is decoded. So neither
//! a byte that another filter copied from the client nor another claim of the same token can make this one unreadable.
//!
//! | message | its fields |
//! |---|---|
//! | `envoy.config.core.v3.Metadata` | 1: map of names to `Struct` |
//! | `google.protobuf.Struct` | 1: map of names to `Value` |
//! | `google.protobuf.Value` | one of 1: null, 2: number, 3: text, 4: bool, 5: `Struct`, 6: list |
//!
//! A map is a repeated message of 1: the name, and 2: the value; the last of one name is the one that counts.

use std::borrow::Cow;

use crate::found::Found;
use crate::request::Request;

/// Where `jwt_authn` puts what it has verified.
const NAMESPACE: &str = "envoy.filters.http.jwt_authn";
/// JSON's numbers are doubles here: from this size on, several whole numbers are the same one.
const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53

/// Which claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The provider's `payload_in_metadata`.
    pub payload: String,
    /// The names that lead to it; at least one.
    pub path: Vec<String>,
}

impl Claim {
    /// The claim as text with the kind of value it is. Missing is what names nobody: absent, null, empty, a list or an
    /// object.
    pub fn read(&self, request: &dyn Request) -> Found<'static> {
        let Some(metadata) = request.property(&["metadata"]) else {
            return Found::Missing;
        };
        match self.find(&metadata) {
            Err(Undecodable) => Found::Unreadable,
            Ok(Some((3, Wire::Bytes(text)))) => Found::of(text.to_vec()),
            Ok(Some((4, Wire::Varint(flag)))) => {
                Found::Value(":bool", Cow::Owned((flag != 0).to_string().into_bytes()))
            }
            Ok(Some((2, Wire::Eight(bits)))) => match f64::from_le_bytes(bits) {
                // Adding 0 makes -0 the same as 0.
                number if number.abs() < EXACT => Found::Value(
                    ":number",
                    Cow::Owned((number + 0.0).to_string().into_bytes()),
                ),
                _ => Found::Unreadable,
            },
            Ok(Some((2..=4, _))) => Found::Unreadable,
            Ok(_) => Found::Missing,
        }
    }

    /// The field of the claim's `Value` that is set, if there is one.
    fn find<'a>(&self, metadata: &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, Undecodable> {
        let verified = entry(metadata, NAMESPACE)?;
        let Some(payload) = verified.map_or(Ok(None), |fields| entry(fields, &self.payload))?
        else {
            return Ok(None);
        };
        let mut set = last(payload, 1..=6)?;
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

/// Bytes that are no protobuf message.
struct Undecodable;

/// What a field of a message holds, by its wire type.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Eight([u8; 8]),
    Bytes(&'a [u8]),
    Four,
}

/// The value of the last entry of this name in the map that is field 1 of a message.
fn entry<'a>(message: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, Undecodable> {
    let mut found = None;
    let mut rest = message;
    while let Some((number, value)) = field(&mut rest)? {
        let (1, Wire::Bytes(entry)) = (number, value) else {
            continue;
        };
        // What is left out is empty.
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

/// Takes a field's number and value from the front of a message; `None` at its end.
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
        // Groups, which proto3 does not have.
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

/// The attribute `metadata` as it is after `jwt_authn` has verified a token with these claims. For people who want to
/// know what a request would ask.
pub fn metadata(payload: &str, claims: &serde_json::Value) -> Vec<u8> {
    map_entry(NAMESPACE, &map_entry(payload, &value(claims)))
}

/// The same of a payload whose claims are these entries of a map.
pub(crate) fn verified(payload: &str, claims: &[u8]) -> Vec<u8> {
    map_entry(NAMESPACE, &map_entry(payload, &bytes(5, claims)))
}

/// An entry with the text `x` under these names.
pub(crate) fn claim_of_x(path: &[String]) -> Vec<u8> {
    let mut names = path.iter().rev();
    let last = names.next().map_or("", String::as_str);
    let entry = map_entry(last, &bytes(3, b"x"));
    names.fold(entry, |entry, name| map_entry(name, &bytes(5, &entry)))
}

/// A `google.protobuf.Value`.
fn value(json: &serde_json::Value) -> Vec<u8> {
    use serde_json::Value as Json;
    match json {
        Json::Null => vec![1 << 3, 0],
        Json::Number(number) => {
            let bits = number.as_f64().unwrap_or_default().to_le_bytes();
            [&[2 << 3 | 1][..], &bits].concat()
        }
        Json::String(text) => bytes(3, text.as_bytes()),
        Json::Bool(flag) => vec![4 << 3, u8::from(*flag)],
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| map_entry(name, &value(field)));
            bytes(5, &fields.collect::<Vec<_>>().concat())
        }
        Json::Array(list) => {
            let values = list.iter().map(|one| bytes(1, &value(one)));
            bytes(6, &values.collect::<Vec<_>>().concat())
        }
    }
}

fn map_entry(name: &str, value: &[u8]) -> Vec<u8> {
    bytes(1, &[bytes(1, name.as_bytes()), bytes(2, value)].concat())
}

/// A field that holds bytes.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut field).unwrap_or_default();
    field.extend(content);
    field
}

#[cfg(test)]
mod tests;
