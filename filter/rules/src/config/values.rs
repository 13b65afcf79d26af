//! Validates values that several parts of a configuration have.

use super::error::{ConfigError, invalid};

/// Most bytes of the name of a rule or limit.
pub(crate) const MAX_NAME_BYTES: usize = 64;

pub(super) fn not_empty(at: &str, text: String) -> Result<String, ConfigError> {
    if text.is_empty() {
        invalid(at, "is empty")
    } else {
        Ok(text)
    }
}

/// The name of a rule or limit, which becomes part of the names of statistics.
pub(super) fn name(at: &str, name: String) -> Result<String, ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        let why = format_args!(
            "`{name}` is not a name of 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ ."
        );
        return invalid(at, why);
    }
    Ok(name)
}
