//! The files that `check-config` and `explain` read: single files, folders and standard input.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use sluicegate::lint::Found;

use super::Failure;

/// Stands for standard input.
const STANDARD_INPUT: &str = "-";
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// What files, the files of folders, and standard input contain together.
///
/// # Errors
/// One cannot be read, or is not YAML.
pub fn read(paths: &[PathBuf]) -> Result<Found, Failure> {
    let mut found = Found::default();
    for (shown, text) in texts(paths)? {
        found.add(&shown, &text).map_err(|error| {
            let render = "; a Helm template has to be rendered first: `helm template . | sluicegate check-config --envoy -`";
            let hint = if text.contains("{{") { render } else { "" };
            Failure::usage(format!("{shown} {error}{hint}"))
        })?;
    }
    Ok(found)
}

/// How files and the files of folders are shown, and their texts.
///
/// # Errors
/// One cannot be read.
pub fn texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    let mut texts = Vec::new();
    for path in paths {
        for file in files_of(path)? {
            texts.push(text_of(&file)?);
        }
    }
    Ok(texts)
}

/// The error if files contain nothing of Sluicegate's.
pub fn nothing_in(paths: &[PathBuf]) -> Failure {
    let shown = paths.iter().map(|path| path.display().to_string());
    let shown: Vec<_> = shown.collect();
    Failure::usage(format!(
        "{} contains no configuration of this filter: neither an Envoy Wasm filter, nor a WasmPlugin, nor an \
         EnvoyExtensionPolicy with `sidecar` and `rules` or `version: 2`, nor a ConfigMap with a policy",
        shown.join(" and ")
    ))
}

/// The file itself, or the YAML and JSON files of a folder, in order.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let cannot = |error| cannot_read(path.display(), &error);
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        inside.push(entry.map_err(cannot)?.path());
    }
    inside.sort();
    let mut files = Vec::new();
    for path in inside {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            files.append(&mut files_of(&path)?);
        } else if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
            files.push(path);
        }
    }
    Ok(files)
}

/// How a file is shown, and its text.
///
/// # Errors
/// It cannot be read.
pub fn text_of(file: &Path) -> Result<(String, String), Failure> {
    let (shown, opened) = open(file)?;
    match io::read_to_string(opened) {
        Ok(text) => Ok((shown, text)),
        Err(error) => Err(cannot_read(shown, &error)),
    }
}

/// How a file, or standard input, is shown, and its content.
///
/// # Errors
/// It cannot be opened.
pub fn open(file: &Path) -> Result<(String, Box<dyn BufRead>), Failure> {
    if file.as_os_str() == STANDARD_INPUT {
        return Ok(("standard input".to_owned(), Box::new(io::stdin().lock())));
    }
    match File::open(file) {
        Ok(opened) => Ok((file.display().to_string(), Box::new(BufReader::new(opened)))),
        Err(error) => Err(cannot_read(file.display(), &error)),
    }
}

/// The error of a file that cannot be read.
pub fn cannot_read(shown: impl Display, error: &io::Error) -> Failure {
    Failure::usage(format_args!("cannot read {shown}: {error}"))
}
