//! The bounds on a bucket's numbers, and errors with a remedy.
//!
//! The bounds are those of the script: Redis's Lua counts in doubles, exact below 2^53, and keeps units
//! in four bytes and times modulo 2^48 microseconds (8.9 years).

/// Most units a limit or a burst may have: sums of two still fit the four bytes that the script keeps.
pub const MAX_UNITS: u64 = (1 << 31) - 1;
/// Most units of a bucket after a write-back of units taken elsewhere; more are not recorded.
pub const MAX_HELD: u64 = (1 << 32) - 1;
/// Shortest window: callers are answered in milliseconds.
pub const MIN_WINDOW_US: u64 = 1_000;
/// Longest window: 366 days, well within the times that the script can distinguish.
pub const MAX_WINDOW_US: u64 = 366 * 24 * 3600 * 1_000_000;

/// A number of a [`BucketSpec`](crate::BucketSpec) that no store can keep exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {value}: {remedy}")]
pub struct SpecError {
    /// The field, as the policy names it: `quota`, `window`, `precision` or `burst`.
    pub field: &'static str,
    /// Its value; times in microseconds.
    pub value: u64,
    /// Acceptable values.
    pub remedy: String,
}

pub(crate) fn units(field: &'static str, value: u64) -> Result<(), SpecError> {
    if (1..=MAX_UNITS).contains(&value) {
        return Ok(());
    }
    refuse(field, value, format!("use 1 to {MAX_UNITS}"))
}

pub(crate) fn refuse(field: &'static str, value: u64, remedy: String) -> Result<(), SpecError> {
    Err(SpecError {
        field,
        value,
        remedy,
    })
}

/// Greatest common divisor, by Euclid's algorithm; that of 0 and n is n.
#[must_use]
pub const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {

    use crate::algorithm::{Algorithm, TokenRate};
    use crate::test::{sliding, spec};

    #[test]
    fn a_refusal_names_the_field_its_value_and_a_remedy() {
        let zero = spec(Algorithm::SlidingLog, 0, 60_000_000).check();
        let why = zero.unwrap_err().to_string();
        assert_eq!(why, "`quota` is 0: use 1 to 2147483647");
        let long = spec(sliding(2_000, false), 5, 1_000);
        let error = long.check().unwrap_err();
        assert_eq!((error.field, error.value), ("precision", 2_000));
        let short = spec(Algorithm::FixedWindow, 5, 999).check().unwrap_err();
        assert_eq!(short.field, "window");
    }

    #[test]
    fn a_burst_is_refused_only_where_doubles_would_round() {
        // 7 and a day share no divisor: one unit weighs 86,400,000,000 fine units.
        let day = 86_400_000_000;
        let most = TokenRate::MAX_BACKLOG / day;
        let fits = spec(Algorithm::TokenBucket { burst: most }, 7, day);
        assert_eq!(fits.check(), Ok(()));
        let over = spec(Algorithm::TokenBucket { burst: most + 1 }, 7, day);
        let error = over.check().unwrap_err();
        assert_eq!(error.field, "burst");
        assert!(error.remedy.contains(&most.to_string()), "{error}");
    }

    #[test]
    fn a_rate_is_kept_in_lowest_terms() {
        let rate = spec(Algorithm::TokenBucket { burst: 1 }, 100, 60_000_000).token_rate();
        assert_eq!((rate.per_us, rate.per_unit), (1, 600_000));
    }
}
