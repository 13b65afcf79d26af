//! Files with the filters' `pepper`.

use std::path::Path;

use super::Failure;
use super::manifests::text_of;

/// The pepper in a file, without the line break at its end.
///
/// # Errors
/// The file cannot be read, or is empty.
pub fn read(file: &Path) -> Result<String, Failure> {
    let (shown, text) = text_of(file)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(Failure::usage(format!(
            "{shown}: it is empty: give the filters' `pepper`"
        ))),
        pepper => Ok(pepper.to_owned()),
    }
}
