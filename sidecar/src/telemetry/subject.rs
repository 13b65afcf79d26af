//! How subjects are shown to operators: by a hash of the key, never by the key.

use std::fmt;

use sha2::{Digest, Sha256};
use sluicegate_protocol::{SUBJECT_BYTES, Whom};

/// The first 80 bits of a key's, or another text's, SHA-256, shown as 20 hexadecimal digits. `sluicegate explain`, `/v1/top`
/// and Envoy's access log show the same digits for the same key and never the key itself. Not salted: all processes must show
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject([u8; SUBJECT_BYTES]);

impl Subject {
    /// The subject of a key.
    pub fn of(key: &str) -> Self {
        let digest = Sha256::digest(key.as_bytes());
        Self(digest.first_chunk().copied().unwrap_or_default())
    }

    /// The subject that is shown by these digits.
    pub fn read(digits: &str) -> Option<Self> {
        let digits = digits.as_bytes().chunks(2).map(|two| {
            let two = std::str::from_utf8(two).ok()?;
            let is_byte = two.len() == 2 && !two.starts_with('+');
            is_byte.then(|| u8::from_str_radix(two, 16).ok())?
        });
        let bytes: Option<Vec<_>> = digits.collect();
        bytes?.try_into().ok().map(Self)
    }

    /// The digits of the key that an override names, if it names one.
    pub fn of_whom(whom: &Whom) -> Option<String> {
        match whom {
            Whom::Key(key) => Some(Self::of(key).to_string()),
            Whom::Subject(digits) => Some(digits.clone()),
            Whom::AllKeys(_) => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0.iter();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_the_start_of_its_keys_sha256sum() {
        // printf %s worker-7 | sha256sum | cut -c1-20
        let digits = Subject::of("worker-7").to_string();
        assert_eq!(digits, "8aca0dd300d2436b96f9");
        assert_eq!(Subject::read(&digits), Some(Subject::of("worker-7")));
        for other in [
            "",
            "8a",
            "8aca0dd300d2436b96f",
            "8aca0dd300d2436b96f9a0",
            "+aca0dd300d2436b96f9",
        ] {
            assert_eq!(Subject::read(other), None, "{other}");
        }
        assert_eq!(
            digits,
            sluicegate_rules::subject("worker-7"),
            "the filter's"
        );
    }
}
