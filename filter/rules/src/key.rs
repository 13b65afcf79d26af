//! Builds keys from components. Different lists of components always give different keys.
//!
//! A component is encoded as `name=value` (plain, percent-escaped outside a small set of characters) or `name#hash`,
//! and components are joined by `;`. Escaped names and values contain none of `;`, `=` and `#`, so the encoding is
//! unambiguous. A key that would be too long is replaced by `~` and its hash.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use sha2::{Digest, Sha256};
use sluicegate_protocol::{DIGEST_DIGITS, SUBJECT_BYTES};

use crate::edges::stripped;
use crate::header::credentials;

/// Longer keys are hashed as a whole, so that clients cannot fill the store's memory with long headers.
pub(crate) const MAX_BYTES: usize = 256;

/// Precedes the name of a component that is missing from a request. No source's name begins with it.
pub const MISSING: &str = "@missing/";
/// Precedes the name of a shadow rule.
pub const SHADOW: &str = "@shadow";

/// The bytes that are escaped, besides everything beyond ASCII.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'/')
    .remove(b':')
    .remove(b'@');

/// Hashes possible secrets, so that they never leave Envoy.
#[derive(Clone, Debug, Default)]
pub struct Hasher {
    seed: Sha256,
}

impl Hasher {
    /// `pepper` is the same for a whole fleet. Without it, anybody who can read Redis could try a dictionary.
    pub fn new(pepper: &str) -> Self {
        let mut seed = Sha256::new();
        // The length separates pepper and value.
        seed.update((pepper.len() as u64).to_be_bytes());
        seed.update(pepper);
        Self { seed }
    }

    /// The digits by which filters and the files of consumers tell whether they have the same pepper.
    pub fn pepper_digest(&self) -> String {
        let mut text = String::new();
        self.append(&mut text, b"sluicegate: which pepper?");
        text.truncate(DIGEST_DIGITS);
        text
    }

    /// The hash that a key contains of a header with this value; of credentials, if there is white space in it.
    pub fn of_header(&self, value: &[u8]) -> String {
        let mut text = String::new();
        self.append(&mut text, &credentials(stripped(value)));
        text
    }

    /// Appends 128 bits of SHA-256 as 32 hexadecimal digits. With a weak hash, a client could craft a header that
    /// collides with a victim's and consume the victim's quota.
    fn append(&self, text: &mut String, value: &[u8]) {
        append(text, &self.seed.clone().chain_update(value).finalize());
    }
}

/// The digits that operators see instead of a key; the sidecar shows the same.
pub fn subject(key: &str) -> String {
    let mut text = String::new();
    append(&mut text, &Sha256::digest(key.as_bytes()));
    text.truncate(2 * SUBJECT_BYTES);
    text
}

/// Appends 32 hexadecimal digits.
fn append(text: &mut String, digest: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        let nibbles = [byte >> 4, byte & 15];
        let digit = |nibble| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
        pair.copy_from_slice(&nibbles.map(digit));
    }
    text.push_str(str::from_utf8(&digits).unwrap_or_default());
}

/// Builds one key, component by component.
#[derive(Debug)]
pub struct Key<'a> {
    hasher: &'a Hasher,
    text: String,
}

impl<'a> Key<'a> {
    /// A key without components.
    pub fn new(hasher: &'a Hasher) -> Self {
        Self {
            hasher,
            // Enough for most keys: reallocation took a sixth of the time to evaluate a plain request.
            text: String::with_capacity(64),
        }
    }

    /// Adds a component that is readable in Redis. The name is passed in pieces, so that callers need not concatenate
    /// them, and already escaped: see [`name`] and [`escaped`].
    pub fn plain(&mut self, name: &[&str], value: &[u8]) {
        self.name(name);
        self.text.push('=');
        self.text.extend(percent_encode(value, ESCAPED));
    }

    /// Adds the hash of a component.
    pub fn hashed(&mut self, name: &[&str], value: &[u8]) {
        self.name(name);
        self.text.push('#');
        self.hasher.append(&mut self.text, value);
    }

    fn name(&mut self, name: &[&str]) {
        if !self.text.is_empty() {
            self.text.push(';');
        }
        self.text.extend(name.iter().copied());
    }

    /// The key.
    pub fn finish(self) -> String {
        if self.text.len() <= MAX_BYTES {
            self.text
        } else {
            let mut text = "~".to_owned();
            self.hasher.append(&mut text, self.text.as_bytes());
            text
        }
    }
}

/// The name of a component whose source has names of its own. `/` precedes each of them and `:` precedes a value's
/// type, so both are escaped in names.
pub(crate) fn name<'n>(source: &str, pieces: impl IntoIterator<Item = &'n str>) -> String {
    const IN_NAMES: &AsciiSet = &ESCAPED.add(b'/').add(b':');
    let mut name = source.to_owned();
    for piece in pieces {
        name.push('/');
        name.extend(utf8_percent_encode(piece, IN_NAMES));
    }
    name
}

/// A text, escaped for a key.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(components: &[(&str, &str, bool)]) -> String {
        let hasher = Hasher::new("");
        let mut key = Key::new(&hasher);
        for (name, value, plain) in components {
            if *plain {
                key.plain(&[name], value.as_bytes());
            } else {
                key.hashed(&[name], value.as_bytes());
            }
        }
        key.finish()
    }

    #[test]
    fn different_components_give_different_keys() {
        let keys = [
            key(&[("a", "b", true), ("c", "d", true)]),
            key(&[("a", "b;c=d", true)]),
            key(&[("a", "b;c", true), ("", "d", true)]),
            key(&[("a", "b", true), ("c", "d", false)]),
            key(&[("a", "", true)]),
            key(&[("a", "", false)]),
            key(&[("a", "%", true)]),
            key(&[("a", "%25", true)]),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    /// Another spelling would give everybody a fresh quota at an upgrade.
    #[test]
    fn every_byte_is_spelt_as_in_the_keys_that_a_store_has() {
        let hasher = Hasher::new("");
        for byte in 0..=u8::MAX {
            let mut key = Key::new(&hasher);
            key.plain(&["a"], &[byte]);
            let spelt = if byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            };
            assert_eq!(key.finish(), format!("a={spelt}"));
        }
        assert_eq!(name("@a", ["/:b", "é"]), "@a/%2F%3Ab/%C3%A9");
    }

    #[test]
    fn a_secret_is_not_in_its_key_and_a_pepper_changes_it() {
        let peppered = |pepper| {
            let hasher = Hasher::new(pepper);
            let mut key = Key::new(&hasher);
            key.hashed(&["x-api-key"], b"hunter2");
            key.finish()
        };
        assert!(!peppered("").contains("hunter2"));
        assert_ne!(peppered(""), peppered("salt"));
        assert_eq!(peppered("salt"), peppered("salt"));
    }

    #[test]
    fn a_long_key_stays_bounded_and_distinct() {
        let long = |last: &str| key(&[("path", &("/x".repeat(5_000) + last), true)]);
        assert_eq!(long("a").len(), 33);
        assert_ne!(long("a"), long("b"));
    }
}
