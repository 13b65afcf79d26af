//! The result of looking up a key component in a request.

use std::borrow::Cow;

/// The value of a key component in a request, or why there is none.
#[derive(PartialEq, Eq)]
pub(crate) enum Lookup<'a> {
    /// The type of the value, if the source has several, and the value.
    Value(&'static str, Cow<'a, [u8]>),
    /// Absent, or empty, which identifies nobody.
    Missing,
    /// Several different values: unknown which of them the upstream uses.
    Ambiguous,
    /// Present, but it cannot be read.
    Unreadable,
}

impl<'a> Lookup<'a> {
    /// A value of a source with one type of value.
    pub fn of(value: impl Into<Cow<'a, [u8]>>) -> Self {
        let value = value.into();
        if value.is_empty() {
            Self::Missing
        } else {
            Self::Value("", value)
        }
    }
}
