//! Validates values that several parts of a configuration have.

use super::error::{ConfigError, invalid};

/// Most bytes of the name of a rule or limit.
pub(crate) const MAX_NAME_BYTES: usize = 64;

/// Validates each entry of a list.
pub(super) fn each<F, T>(
    at: &str,
    list: &[F],
    mut validate: impl FnMut(&str, &F) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    // Collecting results would make the VM's code larger.
    let mut valid = Vec::with_capacity(list.len());
    for (index, entry) in list.iter().enumerate() {
        valid.push(validate(&format!("{at}[{index}]"), entry)?);
    }
    Ok(valid)
}

pub(super) fn not_empty<'a>(at: &str, text: &'a str) -> Result<&'a str, ConfigError> {
    if text.is_empty() {
        invalid(at, "is empty")
    } else {
        Ok(text)
    }
}

/// The name of a rule or limit, which becomes part of the names of statistics.
pub(super) fn name<'a>(at: &str, name: &'a str) -> Result<&'a str, ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        return invalid(
            at,
            format_args!(
                "`{name}` is not a name of 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ ."
            ),
        );
    }
    Ok(name)
}
