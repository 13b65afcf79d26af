//! Receipts on the wire: hexadecimal digits that nobody can guess, for each check: 32 of a hold, 48 of slots.

use std::fmt::Write;

use sluicegate_engine::{
    Algorithm, Bucket, BucketSpec, Guard, MAX_SLOTS, Settlements, SlotId, bucket_key, hold_key,
};
use sluicegate_protocol::{Code, Problem, Settle};

use super::buckets::buckets;
use super::overrides::OverridesNow;
use crate::policy::{MAX_EXPIRE_US, Policy};

/// What a receipt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// A hold with this secret.
    Hold(u128),
    /// These slots.
    Slots(SlotId),
}

impl Receipt {
    /// The receipt on the wire.
    pub fn to_text(self) -> String {
        match self {
            Self::Hold(secret) => format!("{secret:032x}"),
            Self::Slots(SlotId(bytes)) => {
                let mut text = String::with_capacity(2 * bytes.len());
                for byte in bytes {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
        }
    }

    /// Accepts only the spelling of `to_text`.
    pub fn read(text: &str) -> Option<Self> {
        let receipt = match text.len() {
            32 => Self::Hold(u128::from_str_radix(text, 16).ok()?),
            48 => {
                let mut bytes = [0; 24];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    let digits = text.get(2 * index..2 * index + 2)?;
                    *byte = u8::from_str_radix(digits, 16).ok()?;
                }
                let id = SlotId(bytes);
                let is_one = (1..=MAX_SLOTS).contains(&id.units());
                is_one.then_some(Self::Slots(id))?
            }
            _ => return None,
        };
        (receipt.to_text() == text).then_some(receipt)
    }
}

/// Adds the settlement of a receipt, or the renewal of its hold: the hold's key, and for how many milliseconds. The receipt, if a
/// settlement was added.
///
/// # Errors
/// The policy has no such limit, or the receipt is malformed.
pub fn settle(
    policy: &Policy,
    overrides: OverridesNow<'_>,
    asked: &Settle<'_>,
    settlements: &mut Settlements,
    renewals: &mut Vec<(String, u64)>,
) -> Result<Option<Receipt>, Problem> {
    let receipt = Receipt::read(&asked.receipt);
    if let Some(Receipt::Slots(id)) = receipt {
        let guard = match asked.within_ms {
            None => Guard::Free(id),
            Some(_) => Guard::Renew(id),
        };
        settlements.return_to(guard, [slots_of(policy, asked, id)]);
        return Ok(receipt);
    }
    let buckets = buckets(policy, overrides, &asked.limit, &asked.key)?;
    let Some(Receipt::Hold(secret)) = receipt else {
        let why = "`receipt` is malformed: send its characters exactly as in the verdict";
        return Err(Problem::new(Code::MalformedEntry, why).at("receipt"));
    };
    let hold = hold_key(&asked.key, &asked.limit, secret);
    if let Some(within_ms) = asked.within_ms {
        renewals.push((hold, within_ms));
        return Ok(None);
    }
    let used = asked.units.unwrap_or_default();
    settlements.return_to(Guard::Settle { hold, used }, buckets);
    Ok(receipt)
}

/// The bucket of slots; also of a limit that the policy does not have any more, since their streams still run.
fn slots_of(policy: &Policy, asked: &Settle<'_>, id: SlotId) -> Bucket {
    let limit = policy.limit(&asked.limit);
    let lasts_us = limit.and_then(|limit| limit.expire_us());
    let spec = BucketSpec {
        algorithm: Algorithm::Slots,
        quota: id.units(),
        // A caller may have made up the receipt.
        window_us: lasts_us.unwrap_or_else(|| id.lasts_us().min(MAX_EXPIRE_US)),
    };
    let key = bucket_key(&asked.key, &asked.limit, &spec);
    Bucket { key, spec }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_protocol::slots_last_ms;

    #[test]
    fn a_receipt_is_read_as_it_was_written_and_in_no_other_spelling() {
        let secret = crate::random::secret().unwrap();
        let id = SlotId::new(3, 1_790_000_000_000_000, 7, 30_000_000, secret);
        for receipt in [Receipt::Hold(secret), Receipt::Hold(7), Receipt::Slots(id)] {
            assert_eq!(Receipt::read(&receipt.to_text()), Some(receipt));
        }
        assert_eq!((id.units(), id.by(), id.lasts_us()), (3, 7, 30_000_000));
        // What filters read of it.
        let lasts = [Receipt::Hold(secret), Receipt::Slots(id)];
        let lasts = lasts.map(|receipt| slots_last_ms(&receipt.to_text()));
        assert_eq!(lasts, [None, Some(30_000)]);
        assert_eq!(id.at_us(), 1_790_000_000_000_000);
        let a = |count| "A".repeat(count);
        // Of no slots, or of more than one receipt can name.
        let of = |units| Receipt::Slots(SlotId::new(units, 1, 1, 1, 1)).to_text();
        let [none, too_many] = [of(0), of(65)];
        let wrong = ["", "7", "+0000000000000000000000000000007", "x:log:60000ms"];
        for wrong in wrong
            .into_iter()
            .chain([&*a(32), &*a(48), &*"é".repeat(24)])
            .chain([&*none, &*too_many])
        {
            assert_eq!(Receipt::read(wrong), None, "{wrong}");
        }
    }
}
