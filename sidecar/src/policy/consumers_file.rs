//! The file of consumers, which `sluicegate consumers` writes and a policy names: hashes of keys by consumer, and which
//! pepper they were made with. docs/consumers.md describes it for other programs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;
use serde_saphyr::{Error, Spanned};
use sluicegate_protocol::{DIGEST_DIGITS, is_digits};

use super::fields::{MAX_NAME_BYTES, is_name};
use super::files::{read_file, replace_file};
use crate::mask::shown;

/// Most keys of the consumers of a policy.
pub const MAX_CONSUMER_KEYS: usize = 1_000;
const SETGID: u32 = 0o2000;
/// Digits of a key's hash, as the filter makes them.
pub(super) const HASH_DIGITS: usize = 32;
/// Digits of a hash that messages show: enough to find it.
const SHOWN_DIGITS: usize = 8;
/// More than a file with the most keys that are allowed has.
const MAX_BYTES: u64 = 1 << 20;

/// The keys of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumersFile {
    /// The digest of the pepper that the hashes were made with.
    pub pepper: String,
    /// The hashes of each consumer's keys, by its name.
    pub consumers: BTreeMap<String, Vec<String>>,
    /// The consumers of each tier.
    pub tiers: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    pepper: Spanned<String>,
    consumers: BTreeMap<String, Vec<Spanned<String>>>,
    #[serde(default)]
    tiers: BTreeMap<String, Vec<String>>,
}

/// Reads a file of consumers.
///
/// # Errors
/// It cannot be read, or something in it is wrong: the error names file, line, consumer and remedy, and never a whole hash.
pub fn read(path: &Path) -> Result<ConsumersFile, String> {
    let text = read_file(path, MAX_BYTES).map_err(|why| why.to_string());
    text.and_then(|text| parse(&text))
        .map_err(|why| format!("{}: {why}", path.display()))
}

/// Reads the text of such a file.
///
/// # Errors
/// As above, without the file's name.
pub(super) fn parse(text: &str) -> Result<ConsumersFile, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let file: Written = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        let why = match error {
            Error::DuplicateMappingKey { .. } => "a name is given twice: make one list of its keys",
            _ => "expected `pepper: DIGITS`, `consumers: { NAME: [HASH, ...] }` and `tiers: { TIER: [NAME, ...] }`, as `sluicegate consumers add` writes them",
        };
        format!("line {line}: {why}")
    })?;
    if !is_digits(&file.pepper.value, DIGEST_DIGITS) {
        return Err(format!(
            "line {}: `pepper` is not {DIGEST_DIGITS} hexadecimal digits: `sluicegate consumers add` writes them into a new file",
            file.pepper.referenced.line()
        ));
    }
    let mut owners = BTreeMap::new();
    for (name, hashes) in &file.consumers {
        let line = hashes.first().map_or(1, |hash| hash.referenced.line());
        if !is_name(name) || is_digits(name, HASH_DIGITS) {
            return Err(format!(
                "line {line}: {} is not a consumer's name: give 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ .",
                shown(start_of(name))
            ));
        }
        for hash in hashes {
            let line = hash.referenced.line();
            if !is_digits(&hash.value, HASH_DIGITS) {
                return Err(format!(
                    "line {line}: consumer `{name}`: this is not the hash of a key, {HASH_DIGITS} hexadecimal digits: `sluicegate consumers add {name}` makes one"
                ));
            }
            if let Some(owner) = owners.insert(hash.value.as_str(), name) {
                return Err(format!(
                    "line {line}: consumer `{name}`: `{owner}` has this key, {}..., already: remove one of them",
                    start_of(&hash.value)
                ));
            }
        }
    }
    if owners.len() > MAX_CONSUMER_KEYS {
        let keys = owners.len();
        return Err(format!(
            "it has {keys} keys; the maximum is {MAX_CONSUMER_KEYS}: remove those that are no longer in use"
        ));
    }
    let consumers = file.consumers.into_iter().map(|(name, hashes)| {
        let hashes = hashes.into_iter().map(|hash| hash.value);
        (name, hashes.collect())
    });
    Ok(ConsumersFile {
        pepper: file.pepper.value,
        consumers: consumers.collect(),
        tiers: file.tiers,
    })
}

/// The first digits of a hash.
pub fn start_of(hash: &str) -> &str {
    hash.get(..SHOWN_DIGITS).unwrap_or(hash)
}

impl ConsumersFile {
    /// Each hash with its consumer's name.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &str)> {
        let each = self.consumers.iter();
        each.flat_map(|(name, hashes)| hashes.iter().map(|hash| (hash.as_str(), name.as_str())))
    }

    /// Puts a consumer into this tier, and into no other.
    pub fn put_into(&mut self, tier: &str, name: &str) {
        self.tiers.entry(tier.to_owned()).or_default();
        for (other, names) in &mut self.tiers {
            names.retain(|one| one != name);
            if other == tier {
                names.push(name.to_owned());
            }
        }
    }

    /// Forgets consumers that have no key any more. A tier stays, so that its name is not taken for a consumer's.
    pub fn forget_without_keys(&mut self) {
        self.consumers.retain(|_, hashes| !hashes.is_empty());
        let names = &self.consumers;
        let tiers = self.tiers.values_mut();
        tiers.for_each(|tier| tier.retain(|name| names.contains_key(name)));
    }

    /// Replaces a file, and lets those read it who could read the old one. Without an old one: the user, and the group of a folder
    /// that gives its group to files (setgid), such as /etc/sluicegate.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let folder = Path::new(".").join(path);
        let folder = folder.parent().and_then(|folder| folder.metadata().ok());
        let is_shared = folder.is_some_and(|folder| folder.mode() & SETGID != 0);
        let mode = if is_shared { 0o640 } else { 0o600 };
        replace_file(path, &self.to_text(), path.metadata().ok(), mode)
    }

    /// In quotes: digits alone would be numbers.
    fn to_text(&self) -> String {
        let mut text = format!(
            "# Consumers of Sluicegate: hashes of their keys, and the digest of the pepper. `sluicegate consumers` writes this.\npepper: \"{}\"\nconsumers:{}\n",
            self.pepper,
            if self.consumers.is_empty() { " {}" } else { "" }
        );
        for (name, hashes) in &self.consumers {
            text += &format!("  {name:?}: {hashes:?}\n");
        }
        if !self.tiers.is_empty() {
            text += "tiers:\n";
        }
        for (tier, names) in &self.tiers {
            text += &format!("  {tier:?}: {names:?}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const HASH: &str = "00112233445566778899001122334455";

    fn file() -> ConsumersFile {
        ConsumersFile {
            pepper: "012345678901".to_owned(),
            // A name and digits that would be a number and a flag.
            consumers: [
                ("1".to_owned(), vec![HASH.to_owned()]),
                ("true".to_owned(), Vec::new()),
            ]
            .into(),
            tiers: [("2".to_owned(), vec!["1".to_owned()])].into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again_with_the_permissions_of_the_file_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("consumers.yaml");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        file().write(&path).unwrap();
        assert_eq!((read(&path), mode()), (Ok(file()), 0o600));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let none = ConsumersFile {
            consumers: BTreeMap::new(),
            tiers: BTreeMap::new(),
            ..file()
        };
        none.write(&path).unwrap();
        assert_eq!((read(&path), mode()), (Ok(none), 0o640));
    }

    #[test]
    fn a_new_file_is_for_the_group_of_a_folder_that_gives_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o2755)).unwrap();
        let path = folder.path().join("consumers.yaml");
        file().write(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_mistake_is_told_with_line_name_and_remedy_and_no_whole_hash() {
        let good = format!(
            "pepper: 0123456789ab\nconsumers:\n  acme: [{HASH}]\n  beta:\n    - ffeeddccbbaa99887766554433221100\n"
        );
        assert!(parse(&good).is_ok());
        for (from, to, expected) in [
            (
                "pepper: 0123456789ab",
                "pepper: 0123",
                "line 1: `pepper` is not 12",
            ),
            (
                "pepper: 0123456789ab",
                "salt: 0123456789ab",
                "line 1: expected `pepper: DIGITS`",
            ),
            (
                "[0011",
                "[x011",
                "line 3: consumer `acme`: this is not the hash",
            ),
            (
                "ffeeddccbbaa99887766554433221100",
                HASH,
                "line 5: consumer `beta`: `acme` has this key, 00112233..., already",
            ),
            ("beta", "acme", "line 4: a name is given twice"),
            ("beta", "b/eta", "line 5: `b/eta` is not a consumer's name"),
            ("- ff", "- a: ff", "expected `pepper: DIGITS`"),
            (
                "  beta:",
                "  beta: []\ntiers: { gold: [delta] }\nx:",
                "expected `pepper: DIGITS`",
            ),
        ] {
            assert!(good.contains(from), "{from}");
            let why = parse(&good.replace(from, to)).unwrap_err();
            assert!(why.contains(expected), "{why}");
            assert!(!why.contains(HASH), "{why}");
        }
        let many: Vec<_> = (0..=MAX_CONSUMER_KEYS)
            .map(|n| format!("\"{n:032x}\""))
            .collect();
        let many = good.replace(HASH, &many.join(", "));
        assert!(parse(&many).unwrap_err().contains("1002 keys"));
        let missing = read(Path::new("/nonexistent.yaml")).unwrap_err();
        assert!(missing.contains("/nonexistent.yaml"), "{missing}");
    }
}
