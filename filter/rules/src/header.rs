//! Headers as key components: all spellings of a value must give the same key.

use std::borrow::Cow;

use crate::edges::stripped;
use crate::lookup::Lookup;
use crate::request::Headers;

/// The only value of a header. Values under names that WSGI and CGI treat as the same count too.
pub(crate) fn find<'a>(headers: &'a Headers, name: &'a str) -> Lookup<'a> {
    if has_look_alike(headers, name) {
        return Lookup::Ambiguous;
    }
    let values = headers.all(name).map(stripped);
    if !matches!(name, "authorization" | "proxy-authorization") {
        return only(values.map(Cow::Borrowed));
    }
    match only(values.map(credentials)) {
        Lookup::Value(_, value) if value.strip_prefix(b"basic ").is_some_and(is_loose_base64) => {
            Lookup::Ambiguous
        }
        found => found,
    }
}

/// Whether there is another header that WSGI and CGI treat as the same (they read `x_a` as `x-a`, and PHP `x.a` too),
/// with another value or without this one beside it.
pub(crate) fn has_look_alike(headers: &Headers, name: &str) -> bool {
    let name = name.as_bytes();
    let fold = |byte: &u8| if b"_.".contains(byte) { b'-' } else { *byte };
    if !name.iter().any(|byte| fold(byte) == b'-') {
        return false;
    }
    let alike = headers.iter().filter(|(given, _)| {
        given.len() == name.len() && given.iter().map(fold).eq(name.iter().map(fold))
    });
    let (mut own, mut other, mut differs, mut first) = (false, false, false, None);
    for (given, value) in alike {
        differs |= *first.get_or_insert(value) != value;
        own |= given == name;
        other |= given != name;
    }
    other && (differs || !own)
}

/// `Bearer t`, `bearer t` and `Bearer  t` are the same credentials (RFC 9110, section 11). Some upstreams also split
/// them at white space beyond ASCII.
pub(crate) fn credentials(value: &[u8]) -> Cow<'_, [u8]> {
    let scheme = value.iter().take_while(|byte| byte.is_ascii_graphic());
    let (scheme, rest) = value.split_at(scheme.count());
    if rest.is_empty() {
        return Cow::Borrowed(value);
    }
    let mut one = scheme.to_ascii_lowercase();
    one.push(b' ');
    one.extend(stripped(rest));
    Cow::Owned(one)
}

/// Whether some upstreams decode this to the same bytes as another text: Python's decoder skips invalid characters, and
/// most decoders ignore surplus bits at the end. Only a client with bad intentions sends such credentials.
fn is_loose_base64(text: &[u8]) -> bool {
    let digits = text.split(|byte| *byte == b'=').next().unwrap_or_default();
    let all = digits
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte));
    let (padding, last): (&[u8], &[u8]) = match digits.len() % 4 {
        0 => return text != digits || !all,
        2 => (b"==", b"AQgw"),
        3 => (b"=", b"AEIMQUYcgkosw048"),
        _ => return true,
    };
    let ends_well = digits.last().is_some_and(|byte| last.contains(byte));
    !(all && ends_well && text.strip_prefix(digits) == Some(padding))
}

/// The only value of something that can be sent several times. Equal values count as one.
pub(crate) fn only<'a>(mut values: impl Iterator<Item = Cow<'a, [u8]>>) -> Lookup<'a> {
    let Some(first) = values.next() else {
        return Lookup::Missing;
    };
    if values.any(|other| other != first) {
        return Lookup::Ambiguous;
    }
    Lookup::of(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` if the header is missing, `400` if it is ambiguous.
    fn header(headers: &[(&str, &str)], name: &str) -> Option<String> {
        let headers: Headers = headers.iter().copied().collect();
        match find(&headers, name) {
            Lookup::Value(_, value) => Some(String::from_utf8_lossy(&value).into_owned()),
            Lookup::Missing => None,
            Lookup::Ambiguous | Lookup::Unreadable => Some("400".to_owned()),
        }
    }

    #[test]
    fn every_spelling_of_the_auth_scheme_is_one_subject() {
        for name in ["authorization", "proxy-authorization"] {
            for value in [
                "Bearer T",
                "bearer T",
                "BEARER   T",
                "Bearer \tT\u{a0}",
                "Bearer\u{a0}T",
            ] {
                let found = header(&[(name, value)], name);
                assert_eq!(found.as_deref(), Some("bearer T"), "{value}");
            }
            let both = [(name, "Bearer T"), (name, "bearer  T")];
            assert_eq!(header(&both, name).unwrap(), "bearer T");
            assert_eq!(header(&[(name, "Token")], name).unwrap(), "Token");
        }
        assert_eq!(header(&[("x-a", "Bearer  T")], "x-a").unwrap(), "Bearer  T");
        let basic = |text: &str| {
            let value = format!("BASIC {text}");
            header(&[("authorization", &value)], "authorization").unwrap()
        };
        for strict in ["YTpi", "YTpiYw==", "YTpiY2Q=", "8J+/"] {
            assert_eq!(basic(strict), format!("basic {strict}"));
        }
        let loose = "YTpi!,YT pi,YTpi=,YTpiYw,YTpiYw=,YTpiYx==,YTpiYw==YQ==,YTpiY2R=,YTpiY,8J-_";
        for loose in loose.split(',') {
            assert_eq!(basic(loose), "400", "{loose}");
        }
    }

    #[test]
    fn a_header_that_wsgi_treats_as_the_same_counts_as_another_value() {
        for (headers, expected) in [
            (&[("x-a", "1")][..], Some("1")),
            (&[("x_a", "1")][..], Some("400")),
            (&[("x-a", "1"), ("x_a", "2")][..], Some("400")),
            (&[("x_a", "1"), ("x-a", "1")][..], Some("1")),
            (&[("x-a", "1"), ("x-a", "1"), ("x_a", "1")][..], Some("1")),
            (&[("xa", "1"), ("x-ab", "1"), ("x+a", "1")][..], None),
        ] {
            assert_eq!(header(headers, "x-a").as_deref(), expected, "{headers:?}");
        }
        assert_eq!(header(&[("x.a", "1")], "x-a").as_deref(), Some("400"));
        let mixed = header(&[("x-a-b", "1"), ("x_a-b", "2")], "x-a-b");
        assert_eq!(mixed.as_deref(), Some("400"));
        assert_eq!(header(&[("x-a", "1")], "x_a").as_deref(), Some("400"));
    }

    /// W5: these took minutes, and take milliseconds.
    #[test]
    fn look_alikes_without_end_are_compared_in_linear_time() {
        let names = ["x-a", "x_a"].into_iter().cycle().take(60_000);
        let headers: Headers = names.map(|name| (name, "1")).collect();
        let started = std::time::Instant::now();
        assert!(!has_look_alike(&headers, "x-a"));
        assert!(started.elapsed().as_secs() < 5);
    }
}
