//! Receipts on the wire: 32 hexadecimal digits that nobody can guess, one for each check.

use sluicegate_engine::receipt_key;
use sluicegate_protocol::{Code, GiveBack, Problem};

use super::buckets::buckets;
use super::overrides::OverridesNow;
use crate::policy::Policy;
use crate::store::GiveBackEntry;

/// 128 random bits from the operating system. `None` if its random source fails; then there is no receipt.
pub fn secret() -> Option<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(u128::from_ne_bytes(bytes))
}

/// A random number that every JSON reader keeps whole: from 1 to 2^53 - 1. `None` as above.
pub fn number() -> Option<u64> {
    let bits = secret()? >> (128 - 53);
    Some(u64::try_from(bits).unwrap_or(0).max(1))
}

/// The receipt on the wire.
pub fn to_text(secret: u128) -> String {
    format!("{secret:032x}")
}

/// The store's request for a give-back.
///
/// # Errors
/// The policy has no such limit, or the receipt is malformed.
pub fn entry(
    policy: &Policy,
    overrides: OverridesNow<'_>,
    asked: &GiveBack<'_>,
) -> Result<GiveBackEntry, Problem> {
    let buckets = buckets(policy, overrides, &asked.limit, &asked.key)?;
    let secret = read(&asked.receipt).ok_or_else(|| {
        Problem::new(
            Code::MalformedEntry,
            "`receipt` is malformed: send the 32 characters exactly as in the verdict",
        )
        .at("receipt")
    })?;
    Ok(GiveBackEntry {
        receipt: receipt_key(&asked.key, &asked.limit, secret),
        units: asked.units.unwrap_or(u64::MAX),
        buckets,
    })
}

/// Accepts only the spelling of `to_text`.
fn read(text: &str) -> Option<u128> {
    let secret = u128::from_str_radix(text, 16).ok()?;
    (to_text(secret) == text).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_was_written_and_in_no_other_spelling() {
        let secret = secret().unwrap();
        assert_eq!(read(&to_text(secret)), Some(secret));
        assert_eq!(to_text(7).len(), 32);
        for wrong in ["", "7", "+0000000000000000000000000000007", "x:log:60000ms"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read(&"A".repeat(32)), None);
    }

    #[test]
    fn no_two_secrets_are_alike() {
        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| secret()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
