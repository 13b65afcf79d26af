//! Compiles `reply`.

use super::error::{ConfigError, invalid};
use super::fields::{Fields, word};
use super::terms::{Headers, Reply, Unit};

/// The body is sent with every denial, and denials are many.
const MAX_BODY_BYTES: usize = 16 * 1024;

fn units(file: Fields) -> Result<Vec<(String, Unit)>, ConfigError> {
    let kinds = [
        Unit::Requests,
        Unit::Tokens,
        Unit::InputTokens,
        Unit::OutputTokens,
    ];
    let words = ["requests", "tokens", "input_tokens", "output_tokens"];
    let mut units = Vec::new();
    let path = file.at.clone();
    for (limit, unit) in file.into_map() {
        let at = format!("{path}.{limit}");
        let index = word(&at, unit.as_str().unwrap_or_default(), &words)?;
        units.push((limit, kinds.get(index).copied().unwrap_or_default()));
    }
    Ok(units)
}

pub(super) fn compile(mut file: Fields) -> Result<Reply, ConfigError> {
    let kinds = [
        Headers::None,
        Headers::Draft,
        Headers::Legacy,
        Headers::Both,
        Headers::Openai,
        Headers::Anthropic,
    ];
    let words = ["none", "draft", "legacy", "both", "openai", "anthropic"];
    let headers = file.word("headers", &words)?;
    let reply = Reply {
        headers: headers
            .and_then(|index| kinds.get(index).copied())
            .unwrap_or_default(),
        on_admitted: file.flag("on_admitted")?.unwrap_or_default(),
        body: file.text("body")?,
        content_type: file.text("content_type")?,
        units: file.inner("units")?.map_or_else(|| Ok(Vec::new()), units)?,
    };
    file.end()?;
    if reply.on_admitted && reply.headers == Headers::None {
        let why = "has no effect with `headers: none`";
        return invalid(&file.at("on_admitted"), why);
    }
    if !reply.units.is_empty() && !reply.headers.is_of_models() {
        let why = "has no effect without `headers: openai` or `headers: anthropic`";
        return invalid(&file.at("units"), why);
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
