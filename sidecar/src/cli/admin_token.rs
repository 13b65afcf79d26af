//! The admin token, as arguments and environment give it.

use super::Failure;

/// The token without surrounding space: a Secret that was made of a file often ends with a line break. `None` if nothing
/// is left.
///
/// # Errors
/// It has a character that no `authorization` header can carry. The token is not repeated.
pub fn read(given: &str) -> Result<Option<String>, Failure> {
    let token = given.trim();
    if token.chars().any(|char| !matches!(char, ' '..='~')) {
        return Err(Failure::usage(
            "`--admin-token` or SLUICEGATE_ADMIN_TOKEN has a line break or another character that no header can carry: \
             use one line of printable ASCII",
        ));
    }
    Ok((!token.is_empty()).then(|| token.to_owned()))
}
