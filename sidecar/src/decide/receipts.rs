//! Receipts on the wire: 32 hexadecimal digits that nobody can guess, one for each check.

use sluicegate_engine::{Guard, Settlements, hold_key};
use sluicegate_protocol::{Code, Problem, Settle};

use super::buckets::buckets;
use super::overrides::OverridesNow;
use crate::policy::Policy;

/// The receipt on the wire.
pub fn to_text(secret: u128) -> String {
    format!("{secret:032x}")
}

/// Adds the settlement of a receipt, or the renewal of its hold: the hold's key, and for how many milliseconds.
///
/// # Errors
/// The policy has no such limit, or the receipt is malformed.
pub fn settle(
    policy: &Policy,
    overrides: OverridesNow<'_>,
    asked: &Settle<'_>,
    settlements: &mut Settlements,
    renewals: &mut Vec<(String, u64)>,
) -> Result<(), Problem> {
    let buckets = buckets(policy, overrides, &asked.limit, &asked.key)?;
    let secret = read(&asked.receipt).ok_or_else(|| {
        Problem::new(
            Code::MalformedEntry,
            "`receipt` is malformed: send the 32 characters exactly as in the verdict",
        )
        .at("receipt")
    })?;
    let hold = hold_key(&asked.key, &asked.limit, secret);
    if let Some(within_ms) = asked.within_ms {
        renewals.push((hold, within_ms));
        return Ok(());
    }
    let used = asked.units.unwrap_or_default();
    settlements.return_to(Guard::Settle { hold, used }, buckets);
    Ok(())
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
        let secret = crate::random::secret().unwrap();
        assert_eq!(read(&to_text(secret)), Some(secret));
        assert_eq!(to_text(7).len(), 32);
        for wrong in ["", "7", "+0000000000000000000000000000007", "x:log:60000ms"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read(&"A".repeat(32)), None);
    }
}
