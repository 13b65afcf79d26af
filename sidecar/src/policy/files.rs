//! Files, as a running sidecar reads them.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Most bytes of a file: as many as 100,000 limits have.
pub(super) const MAX_BYTES: u64 = 16 * 1_024 * 1_024;

/// Other files that a policy names.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Where relative paths begin; `None` if the policy is in no file.
    folder: Option<PathBuf>,
    /// The contents that were read; `None` if a file could not be read.
    texts: BTreeMap<PathBuf, Option<String>>,
}

impl Files {
    /// The files of the policy in this file.
    pub fn beside(policy: &Path) -> Self {
        Self {
            folder: policy.parent().map(Path::to_owned),
            texts: BTreeMap::new(),
        }
    }

    /// The files of a policy in a ConfigMap: its other entries.
    pub fn given<'t>(entries: impl Iterator<Item = (&'t str, &'t str)>) -> Self {
        let entries = entries.map(|(name, text)| (PathBuf::from(name), Some(text.to_owned())));
        Self {
            folder: None,
            texts: entries.collect(),
        }
    }

    /// Reads a file, and remembers its content.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self, name: &str) -> io::Result<String> {
        let Some(folder) = &self.folder else {
            let given = self.texts.get(Path::new(name)).cloned().flatten();
            return given
                .ok_or_else(|| io::Error::other("there is no such file beside the policy"));
        };
        let path = folder.join(name);
        let text = read(&path);
        self.texts.insert(path, text.as_ref().ok().cloned());
        text
    }

    /// Whether one contains something else now.
    pub(super) fn have_changed(&self) -> bool {
        let mut texts = self.texts.iter();
        texts.any(|(path, text)| read(path).ok() != *text)
    }
}

/// Reads a file of a policy.
pub(super) fn read(path: &Path) -> io::Result<String> {
    read_file(path, MAX_BYTES)
}

/// Reads a regular file of at most so many bytes. In its place, a pipe would keep the sidecar waiting, and a device would
/// never end.
pub(super) fn read_file(path: &Path, most: u64) -> io::Result<String> {
    text_of(open(path, most)?, most)
}

/// Reads a file of this process's user or root: another user's could say anything.
pub(super) fn read_own(path: &Path) -> io::Result<String> {
    let file = open(path, MAX_BYTES)?;
    let owner = file.metadata()?.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    text_of(file, MAX_BYTES)
}

fn open(path: &Path, most: u64) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.len() > most {
        let why = format!("it has more than {} MiB", most >> 20);
        return Err(io::Error::other(why));
    }
    Ok(file)
}

fn text_of(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file with this mode, or with owner and permissions of another, and puts it in the place of the one before.
pub(super) fn replace_file(
    path: &Path,
    text: &str,
    like: Option<Metadata>,
    mut mode: u32,
) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = File::options();
    // A file or link of that name may be of anybody's making.
    let _ = std::fs::remove_file(&new);
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(text.as_bytes())?;
    if let Some(like) = like {
        // Only root may give a file away.
        let _ = fchown(&file, Some(like.uid()), Some(like.gid()));
        mode = like.mode();
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}
