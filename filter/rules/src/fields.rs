//! Query parameters, out of bytes that a client has chosen.

use std::borrow::Cow;

use crate::path::byte_of;

/// The values of a query parameter, in order, with their escapes read.
pub(crate) fn query<'a>(
    query: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = Cow<'a, [u8]>> + 'a {
    query
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .filter_map(move |pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let given = form_decoded(parts.next().unwrap_or_default());
            (*given == *name.as_bytes()).then(|| form_decoded(parts.next().unwrap_or_default()))
        })
}

/// As in `application/x-www-form-urlencoded`: `+` is a space, `%XX` a byte; what is no whole escape stays as it is.
fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
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
    fn a_query_parameter_is_found_however_it_is_spelt() {
        let found = |text: &'static str| -> Vec<_> {
            query(text.as_bytes(), "key")
                .map(|value| String::from_utf8_lossy(&value).into_owned())
                .collect()
        };
        assert_eq!(found("a=1&key=2&&key=3"), ["2", "3"]);
        assert_eq!(found("%6bey=a%2Bb+c"), ["a+b c"]);
        assert_eq!(found("key"), [""]);
        assert_eq!(found("key=%"), ["%"]);
        assert_eq!(found("key=%f"), ["%f"]);
        assert_eq!(found("key=a=b"), ["a=b"]);
        assert_eq!(found("Key=1&xkey=2"), [""; 0]);
    }
}
