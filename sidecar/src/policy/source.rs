//! The policy file: read at the start, and reloaded when it may have changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tracing::warn;

use super::contents::Policy;
use super::files::{Files, read};
use super::kept::Kept;
use super::last_good::LastGood;
use crate::clock;
use crate::lock::lock;

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file, and the system's error: it cannot be read.
    #[error("cannot read policy {0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    /// The file and its mistake: line, field and remedy, and the value only if it cannot be a secret.
    #[error("policy {0}: {1}")]
    Invalid(PathBuf, String),
}

impl Policy {
    /// Reads and checks a policy file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong: the error names file, line, field and remedy.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| PolicyError::Read(path.to_owned(), source))?;
        let read = Self::read(&text, &mut Files::beside(path));
        read.map_err(|message| PolicyError::Invalid(path.to_owned(), message))
    }
}

/// The policy file of a running sidecar.
#[derive(Debug)]
pub struct PolicySource {
    path: PathBuf,
    /// Keeps the last good policy, if there is a state directory.
    last_good: Option<Arc<LastGood>>,
    newest: Mutex<Attempt>,
}

/// The latest attempt to load it.
#[derive(Debug, Default)]
struct Attempt {
    /// The content; `None` if the file could not be read.
    text: Option<String>,
    /// The other files that it names.
    files: Arc<Files>,
    /// Why it was refused, if it was.
    refusal: Option<String>,
    /// If it was refused because there was no room for what it would remove: how much was kept then.
    kept: Option<f64>,
    /// The policy in force is not from the file.
    is_last_good: bool,
}

impl Attempt {
    /// Reads the policy in this text.
    fn read(&mut self, path: &Path, text: String) -> Result<Policy, PolicyError> {
        let mut files = Files::beside(path);
        let read = Policy::read(&text, &mut files);
        (self.text, self.files, self.kept) = (Some(text), Arc::new(files), None);
        read.map_err(|why| PolicyError::Invalid(path.to_owned(), why))
    }
}

fn read_policy(path: &Path) -> Result<String, PolicyError> {
    read(path).map_err(|source| PolicyError::Read(path.to_owned(), source))
}

impl PolicySource {
    /// Reads a file's first policy. With a folder, each good policy is kept there, and the last one is in force at the start if the
    /// file cannot be used; limits and rules of the policies there are kept for filters, as after a reload.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong; nor is there a good one in the folder.
    pub fn open(path: &Path, folder: Option<&Path>) -> Result<(Self, Policy), PolicyError> {
        let mut newest = Attempt::default();
        let read = read_policy(path).and_then(|text| newest.read(path, text));
        let last_good = folder.map(LastGood::in_folder);
        let kept = last_good.as_ref().map(LastGood::read);
        let (kept, mut earlier) = kept.unwrap_or_default();
        earlier.extend(kept.clone());
        let mut policy = read.or_else(|why| {
            (newest.refusal, newest.is_last_good) = (Some(why.to_string()), true);
            kept.ok_or(why)
        })?;
        let now_us = clock::now_us();
        let all_but = |skipped| {
            let mut rest = earlier.iter().skip(skipped);
            let kept = rest.try_fold(Kept::default(), |kept, before| {
                kept.after(before.asked(), policy.asked(), now_us)
            });
            kept.inspect_err(|why| warn!("the earliest policy is not kept: {why}"))
                .ok()
        };
        policy.kept = (0..earlier.len()).find_map(all_but).unwrap_or_default();
        let source = Self {
            path: path.to_owned(),
            last_good: last_good.map(Arc::new),
            newest: Mutex::new(newest),
        };
        source.keep_now(&policy);
        Ok((source, policy))
    }

    fn keep_now(&self, policy: &Policy) {
        self.keep(policy);
        if let Some(last_good) = &self.last_good {
            last_good.write();
        }
    }

    /// Keeps a policy for a start with a broken file, and what it keeps: written by [`Self::write_kept`].
    pub fn keep(&self, policy: &Policy) {
        if let Some(last_good) = &self.last_good {
            last_good.keep(policy);
        }
    }

    /// Writes the last good policy and earlier ones if they are not on disk yet. After a failure, it waits before it tries again.
    pub fn write_kept(&self) {
        if let Some(last_good) = self.last_good.as_ref().filter(|one| one.is_due()) {
            let last_good = Arc::clone(last_good);
            tokio::task::spawn_blocking(move || last_good.write());
        }
    }

    /// Why the policy in force is not in the state directory, if it could not be written there.
    pub fn unkept(&self) -> Option<String> {
        self.last_good.as_ref()?.failure()
    }

    /// Whether the policy in force is the last good one, because the file has been unusable since the start.
    pub fn is_last_good(&self) -> bool {
        lock(&self.newest).is_last_good
    }

    /// Why the file's current content was refused, if it was.
    pub fn refusal(&self) -> Option<String> {
        let newest = lock(&self.newest);
        newest.refusal.clone()
    }

    /// Reads the file again, and calls `apply` with its policy if the content has changed since the last attempt, or there was no
    /// room for what it removes. Only one caller at a time runs this.
    ///
    /// # Errors
    /// The file cannot be read or is invalid, or its policy must not replace the `current` one.
    pub fn reload(&self, current: &Policy, apply: impl FnOnce(Policy)) -> Result<(), PolicyError> {
        let mut newest = lock(&self.newest);
        let tried = read_policy(&self.path).and_then(|text| {
            let is_same = newest.text.as_ref() == Some(&text) && !newest.files.have_changed();
            if is_same && newest.kept.is_none() {
                return Ok(None);
            }
            let policy = newest.read(&self.path, text)?;
            let refused = |why| PolicyError::Invalid(self.path.clone(), why);
            current.check_restart(&policy).map_err(refused)?;
            newest.kept = Some(current.kept_ratio());
            let policy = current.may_become(policy, clock::now_us());
            let policy = policy.map_err(refused)?;
            newest.kept = None;
            Ok(Some(policy))
        });
        match tried {
            Ok(None) => {}
            Ok(Some(policy)) => {
                newest.refusal = None;
                newest.is_last_good = false;
                self.keep_now(&policy);
                apply(policy);
            }
            Err(why) => {
                let refusal = Some(why.to_string());
                if matches!(why, PolicyError::Read(..)) {
                    // Reported already. A log file in the same folder would otherwise cause the next report.
                    if newest.refusal == refusal {
                        return Ok(());
                    }
                    // When the file is back it counts as changed, even with the old content.
                    newest.text = None;
                }
                newest.refusal = refusal;
                return Err(why);
            }
        }
        Ok(())
    }

    /// Whether the file has another content than at the last attempt to load it, or may be loaded now that less is kept.
    pub async fn has_changed(&self, current: &Policy) -> bool {
        let (path, files) = (self.path.clone(), Arc::clone(&lock(&self.newest).files));
        let look = move || (read(&path).ok(), files.have_changed());
        let looked = tokio::task::spawn_blocking(look).await;
        let (text, others) = looked.unwrap_or_default();
        let newest = lock(&self.newest);
        let has_room = newest.kept.is_some_and(|then| current.kept_ratio() < then);
        newest.text != text || others || has_room
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const GOOD: &str =
        "limits: { l: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";

    #[test]
    fn a_file_that_was_missing_or_broken_is_reloaded_even_with_its_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, GOOD).unwrap();
        let (source, policy) = PolicySource::open(&path, None).unwrap();
        let again = || {
            let mut loaded = false;
            let read = source.reload(&policy, |_| loaded = true);
            read.is_ok().then_some(loaded)
        };
        assert_eq!(again(), Some(false), "nothing has changed");
        std::fs::remove_file(&path).unwrap();
        assert_eq!((again(), source.refusal().is_some()), (None, true));
        assert_eq!(again(), Some(false), "that was reported already");
        assert!(source.refusal().is_some(), "it is still missing");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!((again(), source.refusal()), (Some(true), None));
        std::fs::write(&path, "limits: 1").unwrap();
        assert_eq!((again(), source.refusal().is_some()), (None, true));
        assert_eq!(again(), Some(false), "the refusal was reported already");
        assert!(source.refusal().is_some(), "the file is still refused");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!((again(), source.refusal()), (Some(true), None));
    }

    /// A policy of so many limits, the first of which a rule asks for.
    fn written(name: &str, count: usize) -> String {
        let limit = "{ algorithm: fixed_window, windows: [{ quota: 1, per: 1h }] }";
        let limits: String = (0..count)
            .map(|n| format!("  {name}{n}: {limit}\n"))
            .collect();
        let check = format!("{{ limit: {name}0, key: [{{ host: true }}] }}");
        let rules = format!("[{{ name: r, checks: [{check}], when_unavailable: deny }}]");
        format!("limits:\n{limits}rules: {{ s: {{ rules: {rules} }} }}")
    }

    const MINUTE_US: u64 = 60_000_000;

    #[test]
    fn what_is_kept_for_filters_outlives_a_restart_and_is_dropped_from_the_disk_as_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        let earlier = folder.path().join("earlier-policies.json");
        let start = |name: &str| {
            std::fs::write(&path, written(name, 1)).unwrap();
            PolicySource::open(&path, Some(folder.path())).unwrap()
        };
        let reload = |(source, before): (PolicySource, Policy), name: &str| {
            std::fs::write(&path, written(name, 1)).unwrap();
            let mut loaded = None;
            source
                .reload(&before, |policy| loaded = Some(policy))
                .unwrap();
            (source, loaded.unwrap())
        };
        let has = |policy: &Policy, names: &str| {
            names
                .chars()
                .all(|name| policy.limit(&format!("{name}0")).is_some())
        };
        let started = start("a");
        let digest = started.1.rules.digest.clone();
        assert!(!earlier.exists());
        let (_, policy) = reload(reload(started, "b"), "c");
        let told = policy.earlier();
        assert!(has(&policy, "abc") && told.is_some());
        assert_eq!(earlier.metadata().unwrap().mode() & 0o777, 0o600);
        // As one that is broken, and good.
        std::fs::write(&path, "limits: 7").unwrap();
        let (_, policy) = PolicySource::open(&path, Some(folder.path())).unwrap();
        assert_eq!(policy.earlier(), told);
        let (_, policy) = start("c");
        assert_eq!(policy.earlier(), told);
        // Another file than before.
        let (source, policy) = start("d");
        assert!(has(&policy, "abcd"));
        // A filter has the first rules.
        let later_us = clock::now_us() + MINUTE_US;
        let (policy, _) = policy
            .without_unused(|one| one == digest, later_us)
            .unwrap();
        source.keep(&policy);
        source.last_good.as_ref().unwrap().write();
        let (_, policy) = start("d");
        assert!(has(&policy, "ad") && policy.limit("b0").is_none() && policy.limit("c0").is_none());
        // The newest policy in the file; texts that are not policies are skipped.
        let texts = serde_json::to_string(&["limits: 7", &written("x", 10_001), &written("y", 1)]);
        std::fs::write(&earlier, texts.unwrap()).unwrap();
        let (source, policy) = start("d");
        assert!(has(&policy, "dy") && policy.limit("x0").is_none());
        let (policy, _) = policy
            .without_unused(|_| false, later_us + MINUTE_US)
            .unwrap();
        source.keep(&policy);
        source.last_good.as_ref().unwrap().write();
        assert!(!earlier.exists() && policy.limit("y0").is_none());
        std::fs::write(&earlier, "{").unwrap();
        assert!(has(&start("d").1, "d") && !earlier.exists());
    }

    #[tokio::test]
    async fn a_file_for_which_too_much_is_kept_is_read_again_when_less_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, written("a", 5_100)).unwrap();
        let (source, first) = PolicySource::open(&path, None).unwrap();
        let reload = |before: &Policy, text: Option<String>| {
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            let mut loaded = None;
            let read = source.reload(before, |policy| loaded = Some(policy));
            read.map_err(|why| why.to_string()).map(|()| loaded)
        };
        let second = reload(&first, Some(written("b", 5_100))).unwrap().unwrap();
        let why = reload(&second, Some(written("c", 5_100))).unwrap_err();
        assert!(
            why.contains("10200 limits") && !why.contains("restart"),
            "{why}"
        );
        assert!(!source.has_changed(&second).await);
        // As on SIGHUP.
        assert!(reload(&second, None).is_err());
        let later_us = clock::now_us() + MINUTE_US;
        let (later, _) = second.without_unused(|_| false, later_us).unwrap();
        assert!(source.has_changed(&later).await);
        assert!(reload(&later, None).unwrap().is_some() && source.refusal().is_none());
        assert!(!source.has_changed(&later).await);
        assert!(reload(&later, None).unwrap().is_none());
    }

    /// Contents that an attacker who can write to the state directory might leave there.
    #[test]
    fn the_last_good_policy_is_a_regular_file_of_the_sidecars_own_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none.yaml");
        let kept = LastGood::in_folder(folder.path()).path;
        let starts = || PolicySource::open(&path, Some(folder.path())).is_ok();
        let made = std::process::Command::new("mkfifo").arg(&kept).status();
        assert!(made.unwrap().success());
        assert!(!starts(), "and it does not wait for the pipe");
        std::fs::remove_file(&kept).unwrap();
        std::fs::write(&kept, GOOD).unwrap();
        assert!(starts());
        // Only root can give a file away.
        if std::os::unix::fs::chown(&kept, Some(12_345), None).is_ok() {
            assert!(!starts(), "it is another user's");
        }
    }

    #[test]
    fn only_a_regular_file_of_a_bounded_size_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        let why = || read_policy(&path).unwrap_err().to_string();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert!(why().ends_with("it is not a regular file"), "{}", why());
        for (target, end) in [("/dev/zero", "regular file"), ("large", "more than 16 MiB")] {
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(folder.path().join(target), &path).unwrap();
            let large = std::fs::File::create(folder.path().join("large")).unwrap();
            large.set_len(crate::policy::files::MAX_BYTES + 1).unwrap();
            assert!(why().ends_with(end), "{}", why());
        }
    }
}
