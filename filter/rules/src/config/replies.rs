//! Validates `reply`.

use super::error::{ConfigError, invalid};
use super::schema::{self, Headers};
use crate::reply::{HeaderStyle, ReplyStyle};

/// The body is sent with every denial, and denials are many.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(super) fn validate(at: &str, file: Option<&schema::Reply>) -> Result<ReplyStyle, ConfigError> {
    let Some(file) = file else {
        return Ok(ReplyStyle::default());
    };
    let headers = match file.headers {
        Headers::None => HeaderStyle::None,
        Headers::Draft => HeaderStyle::Draft,
        Headers::Legacy => HeaderStyle::Legacy,
        Headers::Both => HeaderStyle::Both,
    };
    if file.on_admitted && headers == HeaderStyle::None {
        return invalid(
            &format!("{at}.on_admitted"),
            "has no effect with `headers: none`",
        );
    }
    let body = match (&file.body, &file.content_type) {
        (None, None) => None,
        (None, Some(_)) => {
            return invalid(&format!("{at}.content_type"), "needs a `body`: add one");
        }
        (Some(body), _) if body.len() > MAX_BODY_BYTES => {
            return invalid(
                &format!("{at}.body"),
                format_args!(
                    "has {} bytes and may have {MAX_BODY_BYTES}, since it is sent with every denial",
                    body.len()
                ),
            );
        }
        (Some(body), None) => Some(("text/plain".to_owned(), body.clone())),
        (Some(body), Some(media)) => {
            let visible = |byte: u8| matches!(byte, b' '..=b'~');
            if !media.contains('/') || !media.bytes().all(visible) {
                return invalid(
                    &format!("{at}.content_type"),
                    format_args!("`{media}` is not a media type such as `text/html`"),
                );
            }
            Some((media.clone(), body.clone()))
        }
    };
    Ok(ReplyStyle {
        headers,
        on_admitted: file.on_admitted,
        body,
    })
}
