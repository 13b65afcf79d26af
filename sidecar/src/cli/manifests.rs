//! The files that `check-config` and `explain` read: single files, folders and standard input.

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
            Failure::usage(format!(
                "{shown} {error}; a Helm template has to be rendered first: `helm template . | sluicegate \
                 check-config --envoy -`"
            ))
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
    let cannot = |error| Failure::usage(format!("cannot read {}: {error}", path.display()));
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
    let (shown, text) = if file.as_os_str() == STANDARD_INPUT {
        let text = std::io::read_to_string(std::io::stdin());
        ("standard input".to_owned(), text)
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    match text {
        Ok(text) => Ok((shown, text)),
        Err(error) => Err(Failure::usage(format!("cannot read {shown}: {error}"))),
    }
}
