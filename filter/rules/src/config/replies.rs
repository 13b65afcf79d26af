//! Validates `reply`.

use super::error::{ConfigError, invalid};
use super::schema::{Headers, Reply};

/// The body is sent with every denial, and denials are many.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(super) fn validate(at: &str, file: &Reply) -> Result<(), ConfigError> {
    if file.on_admitted && file.headers == Headers::None {
        let why = "has no effect with `headers: none`";
        return invalid(&format!("{at}.on_admitted"), why);
    }
    let size = file.body.as_ref().map_or(0, String::len);
    if size > MAX_BODY_BYTES {
        return invalid(
            &format!("{at}.body"),
            format_args!(
                "has {size} bytes and may have {MAX_BODY_BYTES}, since it is sent with every denial"
            ),
        );
    }
    let Some(media) = &file.content_type else {
        return Ok(());
    };
    let at = format!("{at}.content_type");
    if file.body.is_none() {
        return invalid(&at, "needs a `body`: add one");
    }
    let visible = |byte: u8| matches!(byte, b' '..=b'~');
    if !media.contains('/') || !media.bytes().all(visible) {
        return invalid(
            &at,
            format_args!("`{media}` is not a media type such as `text/html`"),
        );
    }
    Ok(())
}
