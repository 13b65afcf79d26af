//! Buckets, and the one spelling of their keys.
//!
//! `sg:{subject}:limit:tag`. The braces make the subject the hash tag of Redis Cluster, so all windows and
//! limits of a subject share a slot. The tag names all that the stored state depends on, the version of its layout
//! included; the limit's quota is not part of it, so raising a limit keeps the counts.

use crate::algorithm::BucketSpec;
use std::fmt::Write;

/// One window of one limit for one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The full key in the store, unique to this bucket.
    pub key: String,
    /// What the bucket counts. The key contains everything that the stored state depends on.
    pub spec: BucketSpec,
}

/// The key of one window of the limit named `limit` for `subject`. No two different triples share one.
#[must_use]
pub fn bucket_key(subject: &str, limit: &str, spec: &BucketSpec) -> String {
    let mut key = beginning(subject, limit);
    // Writing to a String cannot fail.
    let _ = spec.tag(&mut key);
    key
}

/// The key of a hold, by its secret: in the slot of the buckets that it is of, and unlike any of theirs.
#[must_use]
pub fn hold_key(subject: &str, limit: &str, secret: u128) -> String {
    let mut key = beginning(subject, limit);
    push_hold(&mut key, secret);
    key
}

/// The key of a hold beside this bucket, in its slot.
#[must_use]
pub fn hold_key_beside(bucket: &Bucket, secret: u128) -> String {
    let mut key = format!("{}:", bucket.key);
    push_hold(&mut key, secret);
    key
}

fn push_hold(key: &mut String, secret: u128) {
    // Writing to a String cannot fail.
    let _ = write!(key, "hold:{secret:032x}");
}

fn beginning(subject: &str, limit: &str) -> String {
    let mut key = String::with_capacity(subject.len() + limit.len() + 48);
    key.push_str("sg:{");
    if subject.is_empty() {
        // Redis hashes the whole key when the tag is empty. A lone `%` is no subject's escape.
        key.push('%');
    }
    escape(&mut key, subject, "%{}");
    key.push_str("}:");
    escape(&mut key, limit, "%{}:");
    key.push(':');
    key
}

/// Percent-escapes the characters in `special`, space and control characters.
fn escape(key: &mut String, text: &str, special: &str) {
    for character in text.chars() {
        if special.contains(character) || character.is_control() || character == ' ' {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(key, "%{byte:02X}");
            }
        } else {
            key.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::calendar::{Calendar, CalendarUnit};
    use crate::test::spec;

    fn log(window_us: u64) -> BucketSpec {
        spec(Algorithm::SlidingLog, 10, window_us)
    }

    #[test]
    fn a_key_names_the_version_of_its_layout() {
        let key = bucket_key("s", "l", &log(1_000));
        assert_eq!(key, "sg:{s}:l:log1:1ms");
    }

    #[test]
    fn a_calendar_windows_key_names_its_unit_and_its_zone() {
        let key = |unit, zone| {
            let month = Algorithm::CalendarWindow(Calendar::new(unit, zone).unwrap());
            bucket_key("s", "l", &spec(month, 10, 1_000))
        };
        let berlin = key(CalendarUnit::Month, "europe/BERLIN");
        assert_eq!(berlin, "sg:{s}:l:cal1:month:Europe/Berlin");
        assert_ne!(berlin, key(CalendarUnit::Month, "Europe/Paris"));
        assert_ne!(berlin, key(CalendarUnit::Week, "Europe/Berlin"));
    }

    #[test]
    fn the_hash_tag_is_exactly_the_subject() {
        let key = bucket_key("a}b{c%d e\n", "per-key", &log(60_000_000));
        assert_eq!(key, "sg:{a%7Db%7Bc%25d%20e%0A}:per-key:log1:60000ms");
        assert_eq!(bucket_key("", "l", &log(1_500)), "sg:{%}:l:log1:1500us");
    }

    #[test]
    fn a_hold_is_in_the_slot_of_its_buckets() {
        let key = hold_key("a}b", "per-key", 0xABC);
        let digits = "00000000000000000000000000000abc";
        assert_eq!(key, format!("sg:{{a%7Db}}:per-key:hold:{digits}"));
    }

    #[test]
    fn different_parts_never_share_a_key() {
        let key = |subject, limit| bucket_key(subject, limit, &log(1_000));
        assert_ne!(key("", "l"), key("%", "l"));
        assert_ne!(key("s", "a:b"), key("s", "a"));
    }

    #[test]
    fn a_key_does_not_name_the_quota() {
        for algorithm in [Algorithm::SlidingLog, Algorithm::TokenBucket { burst: 5 }] {
            let of = |quota| bucket_key("s", "l", &spec(algorithm, quota, 60_000_000));
            assert_eq!(of(10), of(20));
        }
        let token = spec(Algorithm::TokenBucket { burst: 5 }, 10, 60_000_000);
        assert_eq!(bucket_key("s", "l", &token), "sg:{s}:l:tok4:60000ms");
    }
}
