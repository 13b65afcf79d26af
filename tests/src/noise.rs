//! Requests that no client should send, always the same for the same seed.

use serde_json::{Value, json};

use crate::token::token;

/// A random number generator (xorshift64*): it need not be good, only reproducible.
#[derive(Clone, Debug)]
pub struct Noise(u64);

/// Bytes with a meaning to some part on the way.
const FRAGMENTS: [&[u8]; 40] = [
    b"/",
    b"//",
    b"..",
    b"/../",
    b"/./",
    b"%2e%2e",
    b"%2F",
    b"%5c",
    b"%",
    b"%2",
    b"%zz",
    b"%00",
    b"%25%32%46",
    b";",
    b";a=b",
    b"..;",
    b"?",
    b"&",
    b"=",
    b"#",
    b"\\",
    b",",
    b":",
    b"::1",
    b"[::1]:1",
    b"1.2.3.4",
    b"999.1.1.1",
    b"@",
    b"\"",
    b"'",
    b"{",
    b"}",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x92\xa9",
    b"\t",
    b" ",
    b"a",
    b"videos",
];
const NAMES: [&str; 16] = [
    "x-api-key",
    "X-API-KEY",
    "x-plain",
    "x-cost",
    "x-plan",
    "x-forwarded-for",
    "cookie",
    "authorization",
    "ratelimit",
    "x-ratelimit-remaining",
    "content-type",
    "accept",
    "x-skip",
    "te",
    "retry-after-ms",
    "x-envoy-internal",
];
const METHODS: [&str; 4] = ["POST", "DELETE", "OPTIONS", "get"];

impl Noise {
    /// From a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap_or(0) % bound.max(1)
    }

    /// A number above 0 and at most 1.
    pub fn unit(&mut self) -> f64 {
        const STEPS: usize = 1 << 30;
        (self.below(STEPS) + 1) as f64 / STEPS as f64
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(9) {
            match self.below(8) {
                0 => bytes.push(u8::try_from(self.below(256)).unwrap_or(0)),
                1 if self.below(50) == 0 => bytes.extend(vec![b'k'; self.below(20_000)]),
                _ => bytes.extend(
                    FRAGMENTS
                        .get(self.below(FRAGMENTS.len()))
                        .copied()
                        .unwrap_or_default(),
                ),
            }
        }
        // A line break would begin another request, and the answers would be counted wrongly.
        bytes.retain(|byte| !matches!(byte, b'\r' | b'\n'));
        // Envoy itself rejects control characters: a few are enough.
        if self.below(30) != 0 {
            bytes.retain(|byte| *byte >= b' ' && *byte != 0x7f);
        }
        bytes
    }

    fn claim(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => json!(null),
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(1_000_000)),
            3 => json!(-1.5e300),
            4 => json!(""),
            5 => json!(String::from_utf8_lossy(&self.bytes())),
            6 => json!([self.claim(depth - 1), self.claim(depth - 1)]),
            _ => json!({ "id": self.claim(depth - 1), "": self.claim(depth - 1) }),
        }
    }

    /// A complete request without a body.
    pub fn request(&mut self) -> Vec<u8> {
        // Not HEAD: its answer has a Content-Length without a body, for which the client would wait.
        let method = METHODS.get(self.below(40)).copied().unwrap_or("GET");
        let mut request = method.as_bytes().to_vec();
        request.push(b' ');
        let method_end = request.len();
        request.push(b'/');
        request.extend(self.bytes());
        if self.below(2) == 0 {
            request.extend(b"?q=");
            request.extend(self.bytes());
        }
        // Removes most of what Envoy rejects in a path, so that most requests reach the filter.
        if self.below(20) != 0 {
            let target = request.split_off(method_end);
            let kept = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
            request.extend(target.into_iter().filter(kept));
        }
        request.extend(b" HTTP/1.1\r\nhost: ");
        if self.below(10) == 0 {
            request.extend(self.bytes());
        } else {
            request.extend(b"a.example.com");
        }
        request.extend(b"\r\n");
        for _ in 0..self.below(6) {
            let name = NAMES
                .get(self.below(NAMES.len()))
                .copied()
                .unwrap_or_default();
            request.extend(name.as_bytes());
            request.extend(b": ");
            match name {
                "cookie" => {
                    request.extend(b"session=");
                    request.extend(self.bytes());
                }
                "authorization" => {
                    let claims =
                        json!({ "iss": "issuer", "sub": self.claim(2), "tenant": self.claim(2) });
                    request.extend(b"Bearer ");
                    request.extend(token(&claims).as_bytes());
                }
                _ => request.extend(self.bytes()),
            }
            request.extend(b"\r\n");
        }
        request.extend(b"\r\n");
        request
    }
}
