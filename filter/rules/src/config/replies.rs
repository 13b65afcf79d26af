//! Compiles `reply`.

use super::error::{ConfigError, invalid};
use super::fields::Fields;
use super::terms::{Headers, Reply};

/// The body is sent with every denial, and denials are many.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(super) fn compile(mut file: Fields) -> Result<Reply, ConfigError> {
    let kinds = [
        Headers::None,
        Headers::Draft,
        Headers::Legacy,
        Headers::Both,
    ];
    let headers = file.word("headers", &["none", "draft", "legacy", "both"])?;
    let reply = Reply {
        headers: headers
            .and_then(|index| kinds.get(index).copied())
            .unwrap_or_default(),
        on_admitted: file.flag("on_admitted")?.unwrap_or_default(),
        body: file.text("body")?,
        content_type: file.text("content_type")?,
    };
    file.end()?;
    if reply.on_admitted && reply.headers == Headers::None {
        let why = "has no effect with `headers: none`";
        return invalid(&file.at("on_admitted"), why);
    }
    let size = reply.body.as_ref().map_or(0, String::len);
    if size > MAX_BODY_BYTES {
        let why = format_args!(
            "has {size} bytes and may have {MAX_BODY_BYTES}, since it is sent with every denial"
        );
        return invalid(&file.at("body"), why);
    }
    let Some(media) = &reply.content_type else {
        return Ok(reply);
    };
    let at = file.at("content_type");
    if reply.body.is_none() {
        return invalid(&at, "needs a `body`: add one");
    }
    let visible = |byte: u8| matches!(byte, b' '..=b'~');
    if !media.contains('/') || !media.bytes().all(visible) {
        let why = format_args!("`{media}` is not a media type such as `text/html`");
        return invalid(&at, why);
    }
    Ok(reply)
}
