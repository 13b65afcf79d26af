//! Whom a key is about, without the key: how subjects are shown to operators.

use std::fmt;

use sha2::{Digest, Sha256};

/// The first 48 bits of a key's SHA-256; shown as 12 hexadecimal digits. `sluicegate explain` and `/v1/top` show the
/// same for the same key, and neither says what the key is. (Not salted: else no two processes would agree.)
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
    fn a_subject_is_what_sha256sum_says_of_its_key() {
        // printf %s worker-7 | sha256sum | cut -c1-12
        assert_eq!(Subject::of("worker-7").to_string(), "8aca0dd300d2");
    }
}
