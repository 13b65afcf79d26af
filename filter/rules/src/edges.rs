//! White space at the edges of texts that a client chooses, and names that some upstreams treat as equal.
//!
//! Upstreams strip more than ASCII: Python after decoding Latin-1 (0x85 and 0xA0) or UTF-8, Java and PHP all control
//! characters, JavaScript U+FEFF. Every character that any of them strips is stripped here, so that a subject has one
//! key with every upstream. That is coarser than any of them: `à` is C3 A0 in UTF-8, so two values that differ only in such a last
//! letter share a key.

/// A text without white space at its edges.
pub(crate) fn stripped(text: &[u8]) -> &[u8] {
    match text {
        [b'!'..=b'~', .., b'!'..=b'~'] => text,
        text => stripped_end(stripped_start(text)),
    }
}

#[inline(never)]
fn stripped_end(mut text: &[u8]) -> &[u8] {
    loop {
        text = match text {
            [rest @ .., 0..=b' ' | 0x85 | 0xa0]
            | [rest @ .., 0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf]
            | [rest @ .., 0xe1, 0x9a, 0x80]
            | [rest @ .., 0xe2, 0x81, 0x9f]
            | [rest @ .., 0xe3, 0x80, 0x80]
            | [rest @ .., 0xef, 0xbb, 0xbf]
            // The rest of C2 85, C2 A0 and E2 80 85 where Latin-1 is stripped.
            | [rest @ .., 0xc2]
            | [rest @ .., 0xe2, 0x80] => rest,
            _ => return text,
        }
    }
}

/// A text without white space before it.
#[inline(never)]
pub(crate) fn stripped_start(mut text: &[u8]) -> &[u8] {
    loop {
        text = match text {
            [0..=b' ' | 0x85 | 0xa0, rest @ ..]
            | [0xc2, 0x85 | 0xa0, rest @ ..]
            | [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, rest @ ..]
            | [0xe1, 0x9a, 0x80, rest @ ..]
            | [0xe2, 0x81, 0x9f, rest @ ..]
            | [0xe3, 0x80, 0x80, rest @ ..]
            | [0xef, 0xbb, 0xbf, rest @ ..] => rest,
            _ => return text,
        }
    }
}

/// A name, decoded and stripped, as PHP and ASP.NET compare it: PHP ends it at NUL and replaces `.`, `[` and spaces by
/// `_`; ASP.NET ignores case.
pub(crate) fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    let end = name.iter().take_while(|byte| **byte != 0);
    end.map(|byte| match byte {
        b'.' | b'[' | b' ' => b'_',
        byte => byte.to_ascii_lowercase(),
    })
}
