//! How upstreams parse a path: the steps that they take, in order.
//!
//! A *reading* is the result of applying some of the steps in [`ORDER`] to a path. One upstream only decodes escapes,
//! another removes `;params` first and resolves dot segments afterwards. By default the upstream's steps are unknown,
//! so every selection of them is a reading ([`all`]). If the operator configures them ([`Upstream::Known`]), there is
//! one reading.
//!
//! Merging `//` is a step like the others. For `path`, `path_prefix` and `path_template` the merged path alone would
//! do: none of them contains `//`, so each matches the merged path whenever it matches the other. For `not` and `stop`
//! the unmerged path matters: an upstream that does not merge serves `//public/x` outside `/public/`.

use std::borrow::Cow;

use crate::config::terms::{EncodedSlash, Escapes};

/// One transformation that an upstream may apply to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `\` becomes `/`.
    Backslashes,
    /// A `;` and everything up to the next `/` is removed.
    Parameters,
    /// Percent-escapes are decoded. Incomplete escapes stay unchanged. `Repeatedly` as in a chain of servers that
    /// each decode once; a `Literal` `%2F` stays `%2F`, part of its segment.
    Decode(Escapes, EncodedSlash),
    /// `//` becomes `/`.
    Merge,
    /// `.` and `..` are resolved.
    Dots {
        /// Whether `%2e` counts as a dot, as in the URL standard of browsers and Node.js, which decodes nothing else.
        escaped: bool,
    },
}

pub(crate) const DOTS: Step = Step::Dots { escaped: false };

/// The order of the steps. An upstream takes at most one step of each line; some occur both before and after decoding.
const ORDER: [&[Step]; 8] = [
    &[Step::Backslashes],
    &[Step::Parameters],
    &[Step::Dots { escaped: true }],
    &[
        Step::Decode(Escapes::Once, EncodedSlash::Separator),
        Step::Decode(Escapes::Once, EncodedSlash::Literal),
        Step::Decode(Escapes::Repeatedly, EncodedSlash::Separator),
        Step::Decode(Escapes::Repeatedly, EncodedSlash::Literal),
    ],
    &[Step::Backslashes],
    &[Step::Parameters],
    &[Step::Merge],
    &[DOTS],
];

/// The steps of the coarsest reading, which keys use: see [`super::Target::canonical`].
const COARSEST: [Step; 5] = [
    Step::Decode(Escapes::Repeatedly, EncodedSlash::Separator),
    Step::Backslashes,
    Step::Parameters,
    Step::Merge,
    DOTS,
];

/// What is known about how the upstream parses a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Nothing: every reading is possible.
    Unknown,
    /// It takes these steps.
    Known(Vec<Step>),
}

/// Most readings of a path. Ordinary paths have at most four; only an attacker's have more than 64.
const MAX_READINGS: usize = 64;
/// Most bytes of all readings of a path together. 32 KiB take about 0.3 ms, natively.
const MAX_BYTES: usize = 32 * 1024;

/// Every reading of a path, each once, beginning with the unchanged path. `None` if they exceed the bounds.
pub(crate) fn all(path: Cow<'_, [u8]>) -> Option<Vec<Cow<'_, [u8]>>> {
    let mut bytes = path.len();
    let mut readings = vec![path];
    for alternatives in ORDER {
        for before in 0..readings.len() {
            for step in alternatives {
                let new = readings.get(before).and_then(|path| step.apply(path));
                let new = new.map(Cow::Owned);
                let Some(new) = new.filter(|new| !readings.contains(new)) else {
                    continue;
                };
                bytes += new.len();
                readings.push(new);
                if readings.len() > MAX_READINGS || bytes > MAX_BYTES {
                    return None;
                }
            }
        }
    }
    (bytes <= MAX_BYTES).then_some(readings)
}

/// The path after these steps.
pub(crate) fn after(steps: &[Step], path: &[u8]) -> Vec<u8> {
    steps.iter().fold(path.to_vec(), |path, step| {
        step.apply(&path).unwrap_or(path)
    })
}

/// The coarsest reading of a path.
pub(crate) fn coarsest(path: &[u8]) -> Vec<u8> {
    after(&COARSEST, path)
}

/// The coarsest form of one segment: decoded until no escape is left, without `;params`. A segment that consists of
/// `;params` only keeps them; otherwise a client could make the segment empty and its key missing.
pub(crate) fn coarsest_segment(segment: &[u8]) -> Vec<u8> {
    let decoded = decode(segment, Escapes::Repeatedly, EncodedSlash::Separator);
    match decoded.iter().position(|byte| *byte == b';') {
        Some(end @ 1..) => decoded.get(..end).unwrap_or_default().to_vec(),
        _ => decoded,
    }
}

impl Step {
    /// The path after this step; `None` if it stays the same.
    fn apply(self, path: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Backslashes => path.contains(&b'\\').then(|| {
                let slash = |byte: &u8| if *byte == b'\\' { b'/' } else { *byte };
                path.iter().map(slash).collect()
            }),
            Self::Parameters => path.contains(&b';').then(|| {
                let mut cut = false;
                let mut kept = path.to_vec();
                kept.retain(|byte| {
                    cut = *byte == b';' || (cut && *byte != b'/');
                    !cut
                });
                kept
            }),
            Self::Decode(escapes, slash) => {
                path.contains(&b'%').then(|| decode(path, escapes, slash))
            }
            Self::Merge => path.windows(2).any(|two| two == b"//").then(|| {
                let mut merged = path.to_vec();
                merged.dedup_by(|one, other| *one == b'/' && *other == b'/');
                merged
            }),
            Self::Dots { escaped } => resolve(path, escaped),
        }
    }
}

/// Resolves dot segments as in RFC 3986 (5.2.4): a `..` removes the segment before it, even an empty one.
fn resolve(path: &[u8], escaped: bool) -> Option<Vec<u8>> {
    let dots = |segment: &[u8]| dots(segment, escaped);
    let rest = path.strip_prefix(b"/").unwrap_or(path);
    if !rest.split(|byte| *byte == b'/').any(|one| dots(one) > 0) {
        return None;
    }
    let mut resolved: Vec<u8> = Vec::with_capacity(path.len());
    let mut folder = false;
    for segment in rest.split(|byte| *byte == b'/') {
        let dots = dots(segment);
        // A path that ends with a dot segment is that of a directory: `/a/.` is `/a/`.
        folder = dots > 0;
        match dots {
            0 => {
                resolved.push(b'/');
                resolved.extend(segment);
            }
            2 => {
                let parent = resolved.iter().rposition(|byte| *byte == b'/');
                resolved.truncate(parent.unwrap_or(0));
            }
            _ => {}
        }
    }
    if folder || resolved.is_empty() {
        resolved.push(b'/');
    }
    Some(resolved)
}

/// The number of dots, if the segment consists of one or two dots; otherwise 0.
fn dots(segment: &[u8], escaped: bool) -> usize {
    let is_dot = |text: &[u8]| text == b"." || (escaped && text.eq_ignore_ascii_case(b"%2e"));
    let mut halves = [1, 3]
        .into_iter()
        .filter_map(|at| segment.split_at_checked(at));
    match segment {
        one if is_dot(one) => 1,
        _ if halves.any(|(one, other)| is_dot(one) && is_dot(other)) => 2,
        _ => 0,
    }
}

fn decode(path: &[u8], escapes: Escapes, slash: EncodedSlash) -> Vec<u8> {
    let mut decoded: Vec<u8> = Vec::with_capacity(path.len());
    // What precedes this offset is final and cannot become part of an escape.
    let mut settled = 0;
    for byte in path {
        decoded.push(*byte);
        // An escape may consist of bytes that were escaped themselves (`%2541`), so the end of the decoded text is
        // checked again. Each iteration removes two bytes, so the total time is linear.
        while let Some(escaped) = escape_at_end(&decoded, settled) {
            decoded.truncate(decoded.len() - 3);
            if escaped == b'/' && slash == EncodedSlash::Literal {
                decoded.extend(b"%2F");
                settled = decoded.len();
            } else {
                decoded.push(escaped);
                if escapes != Escapes::Repeatedly {
                    settled = decoded.len();
                }
            }
        }
    }
    decoded
}

fn escape_at_end(text: &[u8], settled: usize) -> Option<u8> {
    let [b'%', high, low] = text.get(settled..)?.last_chunk::<3>()? else {
        return None;
    };
    byte_of(*high, *low)
}

/// The byte that two hexadecimal digits encode.
pub(crate) fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}
