//! Cookies and form encoding, out of bytes that a client has chosen.

use std::borrow::Cow;

use crate::path::byte_of;

/// The values of a cookie, in order, over all `cookie` headers. One pair of quotes around a value is not part of it.
pub(crate) fn cookies<'a>(
    headers: impl Iterator<Item = &'a [u8]>,
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    headers
        .flat_map(|header| header.split(|byte| *byte == b';'))
        .filter_map(move |pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let given = parts.next().unwrap_or_default().trim_ascii();
            let value = parts.next()?.trim_ascii();
            (given == name.as_bytes()).then_some(match value {
                [b'"', inner @ .., b'"'] => inner,
                value => value,
            })
        })
}

/// As in `application/x-www-form-urlencoded`: `+` is a space, `%XX` a byte; what is no whole escape stays as it is.
pub(crate) fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Cow::Owned(decoded),
            [b'%', high, low, after @ ..] if let Some(byte) = byte_of(*high, *low) => {
                decoded.push(byte);
                after
            }
            [b'+', after @ ..] => {
                decoded.push(b' ');
                after
            }
            [byte, after @ ..] => {
                decoded.push(*byte);
                after
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_in_any_of_the_headers() {
        let headers: [&[u8]; 2] = [b"a=1; session = \"x=y\" ;flag", b"session=2"];
        let found: Vec<_> = cookies(headers.into_iter(), "session").collect();
        assert_eq!(found, [&b"x=y"[..], b"2"]);
        assert_eq!(cookies(headers.into_iter(), "flag").count(), 0);
    }
}
