//! Header fields, built without an allocation or a format string for each, because a denied client may send many
//! requests.

use std::ops::Range;

/// Appends a number in decimal.
pub(super) fn number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Header fields to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// The name of each, and where its value is.
    fields: Vec<(&'static str, Range<usize>)>,
    values: String,
}

impl HeaderFields {
    /// With capacity for the fields of a denial, the reply with most of them.
    pub(super) fn for_denial() -> Self {
        Self {
            fields: Vec::with_capacity(10),
            values: String::with_capacity(256),
        }
    }

    /// Adds a field; `write` appends its value.
    pub(super) fn add(&mut self, name: &'static str, write: impl FnOnce(&mut String)) {
        let start = self.values.len();
        write(&mut self.values);
        self.fields.push((name, start..self.values.len()));
    }

    /// Adds a field with a number.
    pub(super) fn add_number(&mut self, name: &'static str, value: u64) {
        self.add(name, |text| number(text, value));
    }

    /// Whether there are no fields.
    pub const fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// In the proxy-wasm ABI's encoding: the number of fields, the lengths of all names and values, then these, each with a zero.
    pub fn to_pairs(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512);
        let mut length = |length| bytes.extend(u32::try_from(length).unwrap_or(0).to_le_bytes());
        length(self.fields.len());
        for (name, value) in self.iter() {
            length(name.len());
            length(value.len());
        }
        for (name, value) in self.iter() {
            for text in [name, "\0", value, "\0"] {
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        bytes
    }

    /// Name and value of each field, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let value = |at: &Range<usize>| self.values.get(at.clone()).unwrap_or_default();
        self.fields.iter().map(move |(name, at)| (*name, value(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Headers;

    #[test]
    fn fields_are_written_as_the_abi_passes_headers() {
        let mut fields = HeaderFields::default();
        fields.add_number("retry-after", 12);
        fields.add("empty", |_| {});
        fields.add("content-type", |text| text.push_str("text/plain"));
        let pairs: Vec<_> = fields.iter().collect();
        let expected = [
            ("retry-after", "12"),
            ("empty", ""),
            ("content-type", "text/plain"),
        ];
        assert_eq!(pairs, expected);
        let read = Headers::from_pairs(fields.to_pairs());
        assert!(
            read.iter()
                .eq(expected.map(|(n, v)| (n.as_bytes(), v.as_bytes())))
        );
    }
}
