//! Text of many small pieces, put together without an allocation or a format string for each: a denial is written
//! for every request of whoever is denied.

/// The most digits that a u64 has.
const DIGITS: usize = 20;

/// Appends a number in decimal.
pub(super) fn number(text: &mut String, mut number: u64) {
    let mut digits = [b'0'; DIGITS];
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    let digits = digits.get(DIGITS - used..).unwrap_or_default();
    text.extend(digits.iter().copied().map(char::from));
}

/// Header fields: constant names, and values that share one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Each name, and where its value ends. It begins where the one before ends.
    ends: Vec<(&'static str, usize)>,
    values: String,
}

impl Fields {
    /// Room for those of a denial, which has the most.
    pub(super) fn roomy() -> Self {
        Self {
            ends: Vec::with_capacity(9),
            values: String::with_capacity(224),
        }
    }

    /// Adds one; `write` appends its value.
    pub(super) fn add(&mut self, name: &'static str, write: impl FnOnce(&mut String)) {
        write(&mut self.values);
        self.ends.push((name, self.values.len()));
    }

    /// Adds a number.
    pub(super) fn add_number(&mut self, name: &'static str, value: u64) {
        self.add(name, |text| number(text, value));
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// There is none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Name and value of each, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut from = 0;
        self.ends.iter().map(move |(name, end)| {
            let value = self.values.get(from..*end).unwrap_or_default();
            from = *end;
            (*name, value)
        })
    }

    /// The value of the first of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find_map(|(given, value)| (given == name).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_everybody_writes_them(n in any::<u64>(), shift in 0_u32..64) {
            let n = n >> shift;
            let mut text = "x".to_owned();
            number(&mut text, n);
            prop_assert_eq!(text, format!("x{n}"));
        }
    }

    #[test]
    fn fields_come_out_as_they_went_in() {
        let mut fields = Fields::default();
        fields.add("a", |text| text.push_str("1 2"));
        fields.add("empty", |_| {});
        fields.add_number("b", 0);
        let all: Vec<_> = fields.iter().collect();
        assert_eq!(all, [("a", "1 2"), ("empty", ""), ("b", "0")]);
        assert_eq!((fields.get("b"), fields.get("c")), (Some("0"), None));
    }
}
