//! What this crate needs to know about a request, and its headers in the host's encoding.

use std::ops::Range;

/// A request as the proxy sees it. Values may be arbitrary bytes.
pub trait Request {
    /// All headers, read once: one call to the host is cheaper than one for each header, and includes repeated headers.
    fn headers(&self) -> &Headers;

    /// An Envoy attribute by its path, for example `["source", "address"]`.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;
}

/// Headers and pseudo-headers of a request, in order, names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    bytes: Vec<u8>,
    /// Where the name and value of each header are.
    spans: Vec<(Range<usize>, Range<usize>)>,
}

impl Headers {
    /// Decodes a map of the proxy-wasm ABI: the number of pairs, the sizes of all names and values (little-endian, four
    /// bytes each), then the zero-terminated names and values. Stops at the first header that does not fit.
    pub fn from_pairs(bytes: Vec<u8>) -> Self {
        let number = |at: usize| {
            let four = bytes.get(at..at.checked_add(4)?)?;
            usize::try_from(u32::from_le_bytes(four.try_into().ok()?)).ok()
        };
        // A wrong count must not determine how much is read.
        let count = number(0).unwrap_or(0).min(bytes.len() / 8);
        let mut at = 4 + count * 8;
        let mut next = |size: usize| {
            let end = at.checked_add(size).filter(|end| *end <= bytes.len())?;
            Some(std::mem::replace(&mut at, end + 1)..end)
        };
        let spans = (0..count).map_while(|index| {
            let sizes = 4 + index * 8;
            Some((next(number(sizes)?)?, next(number(sizes + 4)?)?))
        });
        Self {
            spans: spans.collect(),
            bytes,
        }
    }

    /// Every header, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let slice = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        let spans = self.spans.iter();
        spans.map(move |(name, value)| (slice(name), slice(value)))
    }

    /// The values of all headers with a lower-case name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(given, _)| *given == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// The first value of a header by its lower-case name; empty if there is none.
    pub fn first<'a>(&'a self, name: &'a str) -> &'a [u8] {
        self.all(name).next().unwrap_or_default()
    }

    /// The same test as Envoy's `Grpc::Common::hasGrpcContentType`: this content type, alone or followed by `+`.
    pub(crate) fn is_grpc(&self) -> bool {
        let rest = self.first("content-type").strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+')))
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            let (name, value) = (name.as_ref(), value.as_ref());
            let from = headers.bytes.len();
            headers
                .bytes
                .extend(name.iter().map(u8::to_ascii_lowercase));
            let middle = headers.bytes.len();
            headers.bytes.extend(value);
            let end = headers.bytes.len();
            headers.spans.push((from..middle, middle..end));
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = u32::try_from(pairs.len()).unwrap().to_le_bytes().to_vec();
        for (name, value) in pairs {
            for size in [name.len(), value.len()] {
                bytes.extend(u32::try_from(size).unwrap().to_le_bytes());
            }
        }
        for (name, value) in pairs {
            bytes.extend(name.as_bytes());
            bytes.push(0);
            bytes.extend(*value);
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn headers_are_read_as_the_abi_writes_them() {
        let written: [(&str, &[u8]); 4] =
            [(":path", b"/"), ("a", b""), ("b", b"\xff\0"), ("a", b"2")];
        let headers = Headers::from_pairs(pairs(&written));
        assert_eq!(headers.first(":path"), b"/");
        assert_eq!(headers.first("b"), b"\xff\0");
        assert_eq!(headers.all("a").collect::<Vec<_>>(), [&b""[..], b"2"]);
        assert_eq!(headers.first("c"), b"");
    }

    #[test]
    fn a_truncated_or_inconsistent_map_is_read_as_far_as_it_goes() {
        let whole = pairs(&[("a", b"1"), ("b", b"2")]);
        for end in 0..whole.len() {
            let cut = Headers::from_pairs(whole.get(..end).unwrap().to_vec());
            assert!(cut.iter().count() <= 2, "{end}");
        }
        for lie in 0..whole.len().min(20) {
            let mut lying = whole.clone();
            lying[lie] = 0xff;
            assert!(Headers::from_pairs(lying).iter().count() <= 2, "{lie}");
        }
    }
}
