//! What looking for a part of a key has found.

use std::borrow::Cow;

/// What a request says of a part.
#[derive(PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// The kind of the value, where the source has several, and the value.
    Value(&'static str, Cow<'a, [u8]>),
    /// Nothing, or an empty value, which names nobody.
    Missing,
    /// Several different values: which of them the upstream believes cannot be known.
    Ambiguous,
    /// Something that names somebody, and cannot be read.
    Unreadable,
}

impl<'a> Found<'a> {
    /// A value of a source that has one kind of them.
    pub fn of(value: impl Into<Cow<'a, [u8]>>) -> Self {
        let value = value.into();
        if value.is_empty() {
            Self::Missing
        } else {
            Self::Value("", value)
        }
    }
}
