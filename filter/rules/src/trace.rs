//! The trace context of a request.

use crate::request::Headers;

/// The `traceparent` of a sampled request, if it is valid in version 00 of W3C Trace Context. Anything else is dropped,
/// because a client may have sent it.
pub fn parent(headers: &Headers) -> Option<String> {
    const BYTES: usize = 55;
    let mut all = headers.all("traceparent");
    let (value, None) = (all.next()?, all.next()) else {
        return None;
    };
    let mut bytes = value.iter().enumerate();
    let fits = value.len() == BYTES
        && value.starts_with(b"00")
        && bytes.all(|(index, byte)| match index {
            2 | 35 | 52 => *byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        });
    // The lowest bit: the caller samples the trace.
    let sampled = matches!(
        value.last(),
        Some(b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f')
    );
    let value = std::str::from_utf8(value).ok()?;
    (fits && sampled).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(values: &[&[u8]]) -> Headers {
        values.iter().map(|value| ("traceparent", value)).collect()
    }

    #[test]
    fn a_sampled_traceparent_is_passed_on_unchanged() {
        assert_eq!(parent(&headers(&[GOOD.as_bytes()])).as_deref(), Some(GOOD));
        assert_eq!(parent(&headers(&[])), None);
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(parent(&headers(&[unsampled.as_bytes()])), None);
    }

    #[test]
    fn a_malformed_traceparent_is_dropped() {
        for bad in [
            "",
            "01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033310-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319\"-b7ad6b7169203331-01",
        ] {
            assert_eq!(parent(&headers(&[bad.as_bytes()])), None, "{bad}");
        }
        assert_eq!(parent(&headers(&[&b"\xff"[..]])), None);
        assert_eq!(parent(&headers(&[GOOD.as_bytes(), GOOD.as_bytes()])), None);
    }
}
