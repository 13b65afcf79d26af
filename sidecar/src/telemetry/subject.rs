//! How subjects are shown to operators: by a hash of the key, never by the key.

use std::fmt;

use sha2::{Digest, Sha256};

/// The first 48 bits of a key's, or another text's, SHA-256, shown as 12 hexadecimal digits. `sluicegate explain` and
/// `/v1/top` show the same digits for the same key and never the key itself. Not salted: all processes must show the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(u64);

impl Subject {
    /// The subject of a key.
    pub fn of(key: &str) -> Self {
        let digest = Sha256::digest(key.as_bytes());
        let bytes = digest.iter().take(6);
        Self(bytes.fold(0, |bits, byte| (bits << 8) | u64::from(*byte)))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_the_start_of_its_keys_sha256sum() {
        // printf %s worker-7 | sha256sum | cut -c1-12
        assert_eq!(Subject::of("worker-7").to_string(), "8aca0dd300d2");
    }
}
