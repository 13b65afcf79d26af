//! The last good policy in the state directory, for a start with a broken file: written again until it is there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tracing::{info, warn};

use super::files::replace_file;
use crate::clock;
use crate::lock::{lock, try_lock};

const NAME: &str = "last-good-policy.yaml";
/// From one attempt to write it to the next.
const PAUSE_US: u64 = 5_000_000;

/// Where it is kept, and whether it is there.
#[derive(Debug)]
pub(super) struct LastGood {
    pub path: PathBuf,
    unwritten: Mutex<Option<Unwritten>>,
    /// Held while it is written, which may take long.
    writing: Mutex<()>,
}

/// A policy that is not on disk.
#[derive(Clone, Debug)]
struct Unwritten {
    text: Arc<str>,
    /// Why the last attempt failed.
    why: Option<String>,
    next_us: u64,
}

impl LastGood {
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            path: folder.join(NAME),
            unwritten: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Keeps a policy. It may contain the store's password.
    pub fn keep(&self, text: &str) {
        let mut unwritten = lock(&self.unwritten);
        let why = unwritten.take().and_then(|earlier| earlier.why);
        *unwritten = Some(Unwritten {
            text: text.into(),
            why,
            next_us: 0,
        });
        drop(unwritten);
        self.write();
    }

    /// Whether it is time to write it.
    pub fn is_due(&self) -> bool {
        let unwritten = lock(&self.unwritten);
        let mut unwritten = unwritten.iter();
        unwritten.any(|unwritten| unwritten.next_us <= clock::now_us())
    }

    /// Writes what is not written yet, unless somebody else does.
    pub fn write(&self) {
        let Some(_writing) = try_lock(&self.writing) else {
            return;
        };
        let Some(before) = lock(&self.unwritten).clone() else {
            return;
        };
        let written = replace_file(&self.path, &before.text, None, 0o600);
        let mut unwritten = lock(&self.unwritten);
        let newest = unwritten.as_mut();
        let Some(newest) = newest.filter(|newest| Arc::ptr_eq(&newest.text, &before.text)) else {
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
