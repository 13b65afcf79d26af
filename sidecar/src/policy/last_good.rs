//! The last good policy in the state directory, for a start with a broken file, and those before it, for filters that have their
//! rules: written again until they are there.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tracing::{info, warn};

use super::contents::Policy;
use super::files::{read_own, replace_file};
use crate::clock;
use crate::lock::{lock, try_lock};

const NAME: &str = "last-good-policy.yaml";
/// A list of texts.
const EARLIER: &str = "earlier-policies.json";
/// From one attempt to write it to the next.
const PAUSE_US: u64 = 5_000_000;

/// Where it is kept, and whether it is there.
#[derive(Debug)]
pub(super) struct LastGood {
    pub path: PathBuf,
    earlier: PathBuf,
    unwritten: Mutex<Option<Unwritten>>,
    /// Held while it is written, which may take long.
    writing: Mutex<()>,
}

/// A policy that is not on disk, with those before it.
#[derive(Clone, Debug)]
struct Unwritten {
    texts: Arc<(Arc<str>, Vec<Arc<str>>)>,
    /// Why the last attempt failed.
    why: Option<String>,
    next_us: u64,
}

impl LastGood {
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            path: folder.join(NAME),
            earlier: folder.join(EARLIER),
            unwritten: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Reads the policy, and those before it, oldest first.
    pub fn read(&self) -> (Option<Policy>, Vec<Policy>) {
        // A file that is not a list is reported as one text that is not a policy.
        let list = |text: String| serde_json::from_str(&text).unwrap_or_else(|_| vec![text]);
        let last = read_policies(&self.path, |text| vec![text]).pop();
        (last, read_policies(&self.earlier, list))
    }

    /// Has a policy written next.
    pub fn keep(&self, policy: &Policy) {
        let mut unwritten = lock(&self.unwritten);
        let why = unwritten.take().and_then(|earlier| earlier.why);
        *unwritten = Some(Unwritten {
            texts: Arc::new((Arc::clone(&policy.text.0), policy.kept.texts())),
            why,
            next_us: 0,
        });
    }

    /// The earlier ones first: until the last good one is replaced, it is one of them.
    fn replace(&self, (text, earlier): &(Arc<str>, Vec<Arc<str>>)) -> io::Result<()> {
        if earlier.is_empty() {
            // What stays there is read once more, and kept for a minute.
            let _ = std::fs::remove_file(&self.earlier);
        } else {
            let texts: Vec<&str> = earlier.iter().map(AsRef::as_ref).collect();
            let texts = serde_json::to_string(&texts)?;
            replace_file(&self.earlier, &texts, None, 0o600)?;
        }
        replace_file(&self.path, text, None, 0o600)
    }

    /// Whether it is time to write it.
    pub fn is_due(&self) -> bool {
        let unwritten = lock(&self.unwritten);
        let mut unwritten = unwritten.iter();
        unwritten.any(|unwritten| unwritten.next_us <= clock::now_us())
    }

    /// Writes policies that are not on disk yet, unless another thread is writing.
    pub fn write(&self) {
        let Some(_writing) = try_lock(&self.writing) else {
            return;
        };
        let Some(before) = lock(&self.unwritten).clone() else {
            return;
        };
        let written = self.replace(&before.texts);
        let mut unwritten = lock(&self.unwritten);
        let newest = unwritten.as_mut();
        let Some(newest) = newest.filter(|newest| Arc::ptr_eq(&newest.texts, &before.texts)) else {
            return;
        };
        let path = self.path.display();
        match (written, before.why) {
            (Err(why), logged) => {
                let why = why.to_string();
                if logged.is_none() {
                    warn!("cannot keep the policy in {path}: {why}; it is tried again");
                }
                newest.why = Some(why);
                newest.next_us = clock::now_us() + PAUSE_US;
            }
            (Ok(()), logged) => {
                if logged.is_some() {
                    info!("the policy is kept in {path}");
                }
                *unwritten = None;
            }
        }
    }

    /// Why the policy in force is not on disk, if that was tried.
    pub fn failure(&self) -> Option<String> {
        let why = lock(&self.unwritten).as_ref()?.why.clone()?;
        Some(format!(
            "cannot keep the policy in {}: {why}",
            self.path.display()
        ))
    }
}

fn read_policies(path: &Path, texts_of: impl Fn(String) -> Vec<String>) -> Vec<Policy> {
    let read: Vec<_> = match read_own(path) {
        Ok(text) => texts_of(text)
            .iter()
            .map(|text| Policy::parse(text))
            .collect(),
        Err(why) if why.kind() == ErrorKind::NotFound => Vec::new(),
        Err(why) => vec![Err(why.to_string())],
    };
    let told = |why: &String| warn!("a policy in {} is not used: {why}", path.display());
    let usable = read
        .into_iter()
        .filter_map(|read| read.inspect_err(told).ok());
    usable.collect()
}
