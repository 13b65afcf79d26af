//! Header fields, built without an allocation or a format string for each, because a denied client may send many
//! requests.

/// Appends a number in decimal.
pub(super) fn number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Header fields in the form that the proxy-wasm ABI uses: zero-terminated names and values, and their lengths in a
/// separate list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// Lengths of each name and value.
    lengths: Vec<(usize, usize)>,
    text: String,
}

impl HeaderFields {
    /// With capacity for the fields of a denial, the reply with most of them.
    pub(super) fn for_denial() -> Self {
        Self {
            lengths: Vec::with_capacity(9),
            text: String::with_capacity(384),
        }
    }

    /// Adds a field; `write` appends its value.
    pub(super) fn add(&mut self, name: &'static str, write: impl FnOnce(&mut String)) {
        self.text.push_str(name);
        self.text.push('\0');
        let start = self.text.len();
        write(&mut self.text);
        self.lengths.push((name.len(), self.text.len() - start));
        self.text.push('\0');
    }

    /// Adds a field with a number.
    pub(super) fn add_number(&mut self, name: &'static str, value: u64) {
        self.add(name, |text| number(text, value));
    }

    /// Whether there are no fields.
    pub const fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// In the ABI's encoding: the number of fields, the lengths of all names and values, then the text.
    pub fn to_pairs(&self) -> Vec<u8> {
        let pairs = self.lengths.len();
        let mut bytes = Vec::with_capacity(4 + 8 * pairs + self.text.len());
        bytes.resize(4 + 8 * pairs, 0);
        let lengths = self
            .lengths
            .iter()
            .flat_map(|(name, value)| [*name, *value]);
        for (slot, number) in bytes
            .chunks_exact_mut(4)
            .zip(std::iter::once(pairs).chain(lengths))
        {
            slot.copy_from_slice(&u32::try_from(number).unwrap_or(0).to_le_bytes());
        }
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// Name and value of each field, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = self.text.as_str();
        self.lengths.iter().map(move |(name, value)| {
            let mut next = |length: usize| {
                let (text, after) = rest.split_at_checked(length).unwrap_or_default();
                rest = after.get(1..).unwrap_or_default();
                text
            };
            (next(*name), next(*value))
        })
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find_map(|(given, value)| (given == name).then_some(value))
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
