//! Checks of what clients are told.

use super::fault::{ConfigError, fault};
use super::written::{self, Headers};
use crate::reply::{HeaderStyle, ReplyStyle};

/// A body travels with every denial, and denials are many.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(super) fn check(at: &str, file: Option<&written::Reply>) -> Result<ReplyStyle, ConfigError> {
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
        return fault(
            &format!("{at}.on_admitted"),
            "has nothing to tell with `headers: none`",
        );
    }
    let body = match (&file.body, &file.content_type) {
        (None, None) => None,
        (None, Some(_)) => {
            return fault(&format!("{at}.content_type"), "belongs to `body`: give one");
        }
        (Some(body), _) if body.len() > MAX_BODY_BYTES => {
            return fault(
                &format!("{at}.body"),
                format_args!(
                    "has {} bytes and may have {MAX_BODY_BYTES}: it travels with every denial",
                    body.len()
                ),
            );
        }
        (Some(body), None) => Some(("text/plain".to_owned(), body.clone())),
        (Some(body), Some(media)) => {
            let visible = |byte: u8| matches!(byte, b' '..=b'~');
            if !media.contains('/') || !media.bytes().all(visible) {
                return fault(
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
