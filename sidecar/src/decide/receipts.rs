//! Receipts on the wire: 32 hexadecimal digits that nobody can guess, one for each check.

use sluicegate_engine::{Receipt, receipt_key};
use sluicegate_protocol::{Code, GiveBack, Problem};

use super::buckets::buckets;
use crate::policy::{Limit, Policy};
use crate::store::GiveBackEntry;

/// 128 bits of the operating system's randomness. None if it has none to give; then there is no receipt.
pub fn secret() -> Option<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(u128::from_ne_bytes(bytes))
}

/// As it stands on the wire.
pub fn told(secret: u128) -> String {
    format!("{secret:032x}")
}

/// What the store is to keep for a check.
pub fn receipt(limit: &Limit, key: &str, units: u64, secret: u128) -> Receipt {
    let lifetimes = limit.windows.iter().map(|spec| spec.held_for_us(units));
    Receipt {
        key: receipt_key(key, &limit.name, secret),
        units,
        lifetime_us: lifetimes.max().unwrap_or(0),
    }
}

/// What is asked of the store for a give-back.
///
/// # Errors
/// There is no such limit, or the receipt is none that a sidecar gives.
pub fn entry(policy: &Policy, asked: &GiveBack<'_>) -> Result<GiveBackEntry, Problem> {
    let buckets = buckets(policy, &asked.limit, &asked.key)?;
    let secret = read(&asked.receipt).ok_or_else(|| {
        Problem::new(
            Code::MalformedEntry,
            "`receipt` is not one that a verdict has: send the string as it stands there, 32 characters",
        )
    })?;
    Ok(GiveBackEntry {
        receipt: receipt_key(&asked.key, &asked.limit, secret),
        units: asked.units.unwrap_or(u64::MAX),
        buckets,
    })
}

/// Only in the one spelling that is told.
fn read(text: &str) -> Option<u128> {
    let secret = u128::from_str_radix(text, 16).ok()?;
    (told(secret) == text).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s15_a_secret_is_read_as_it_was_told_and_in_no_other_spelling() {
        let secret = secret().unwrap();
        assert_eq!(read(&told(secret)), Some(secret));
        assert_eq!(told(7).len(), 32);
        for wrong in ["", "7", "+0000000000000000000000000000007", "x:log:60000ms"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read(&"A".repeat(32)), None);
    }

    #[test]
    fn s15_no_two_secrets_are_alike() {
        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| secret()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
