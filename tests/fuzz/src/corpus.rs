//! The corpus of a target: `corpus/TARGET.txt`, an input in each line. Bytes that are not printable are escaped as in Rust's
//! byte strings. A line that begins with `# ` says what happened with the input below it; `pack` keeps such inputs whatever
//! they reach.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// An input that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What happened with it; empty for one that the fuzzer kept because of what it reaches.
    pub story: String,
    /// The input.
    pub bytes: Vec<u8>,
}

fn without_story(bytes: Vec<u8>) -> Entry {
    let story = String::new();
    Entry { story, bytes }
}

/// The file of a target's corpus.
pub fn file(target: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    folder.join(format!("{target}.txt"))
}

/// The corpus of a target; nothing, if there is none yet.
///
/// # Panics
/// A line is no escaped input.
pub fn read(target: &str) -> Vec<Entry> {
    let text = fs::read_to_string(file(target)).unwrap_or_default();
    let (mut entries, mut story) = (Vec::new(), String::new());
    for (index, line) in text.lines().enumerate() {
        if let Some(more) = line.strip_prefix("# ") {
            story = [story.as_str(), more].join("\n").trim_start().to_owned();
            continue;
        }
        let bytes = unescape(line.as_bytes());
        let bytes = bytes.unwrap_or_else(|| panic!("{target}.txt: line {}: {line}", index + 1));
        let story = std::mem::take(&mut story);
        entries.push(Entry { story, bytes });
    }
    entries
}

/// Writes each input into a file of its own, for libFuzzer.
///
/// # Panics
/// The folder cannot be written.
pub fn unpack(target: &str, folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    for (index, entry) in read(target).iter().enumerate() {
        fs::write(folder.join(format!("kept-{index}")), &entry.bytes).expect("a file");
    }
}

/// Makes the corpus of inputs with a story, which stay, and of the files in a folder.
///
/// # Panics
/// The folder cannot be read, or the corpus not written.
pub fn pack(target: &str, folder: &Path) {
    let mut entries = read(target);
    entries.retain(|entry| !entry.story.is_empty());
    let files = fs::read_dir(folder).expect("a folder");
    let files = files.map(|file| fs::read(file.expect("a file").path()).expect("a file"));
    let known: BTreeSet<_> = entries.iter().map(|entry| entry.bytes.clone()).collect();
    let new: BTreeSet<_> = files.filter(|bytes| !known.contains(bytes)).collect();
    entries.extend(new.into_iter().map(without_story));
    fs::write(file(target), write(&entries)).expect("a file");
}

/// Adds an input that failed.
///
/// # Panics
/// There is no story, or a file cannot be read or written.
pub fn keep(target: &str, input: &Path, story: &str) {
    assert!(!story.is_empty(), "say what happened");
    let bytes = fs::read(input).expect("a file");
    let mut entries = read(target);
    let story = story.to_owned();
    entries.insert(0, Entry { story, bytes });
    fs::write(file(target), write(&entries)).expect("a file");
}

fn write(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        for line in entry.story.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        let escaped = entry.bytes.escape_ascii().to_string();
        // An input that looks like a story.
        match escaped.strip_prefix("# ") {
            Some(rest) => text += &format!("\\x23 {rest}\n"),
            None => text += &format!("{escaped}\n"),
        }
    }
    text
}

/// The inverse of `escape_ascii`; `None` for what it does not write.
fn unescape(line: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line;
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'\\', [b'x', digits @ ..]) => {
                let (digits, after) = digits.split_at_checked(2)?;
                let digits = str::from_utf8(digits).ok()?;
                (u8::from_str_radix(digits, 16).ok()?, after)
            }
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [byte @ (b'\\' | b'"' | b'\''), after @ ..]) => (*byte, after),
            (b'\\', _) => return None,
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_escaped_and_read_again() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"# no story", b"\\x41\\"] {
            let text = write(&[without_story(bytes.to_vec())]);
            assert!(!text.starts_with("# "));
            let again = unescape(text.trim_end_matches('\n').as_bytes());
            assert_eq!(again.unwrap(), bytes);
        }
        for broken in ["\\", "\\x4", "\\xzz", "\\q"] {
            assert_eq!(unescape(broken.as_bytes()), None);
        }
    }
}
