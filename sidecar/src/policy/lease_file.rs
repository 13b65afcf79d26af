//! A limit's `lease` in the policy file, and its validation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_engine::BucketSpec;
use sluicegate_engine::lease::{LeaseTerms, SMALLEST_LEASE, reserve};

use super::fields::duration;
use super::window_file::window_name;
use crate::clock::micros;
use crate::mask::shown;

/// Default of `longest`.
const DEFAULT_LONGEST: &str = "100ms";
/// Other sidecars feel a reset by up to `longest` later, and units may lie idle for as long.
const MAX_LONGEST: Duration = Duration::from_secs(10);
/// Default of `most`.
const DEFAULT_MOST: u64 = 1_000;
/// More would be a large part of every quota.
const MAX_MOST: u64 = 1_000_000;
/// Default of `from`.
const DEFAULT_FROM: &str = "50/s";

/// An entry of `lease`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseFile {
    /// a duration such as `100ms`, at most `10s`
    #[serde(default)]
    longest: Option<String>,
    /// a whole number from 8 to 1000000
    #[serde(default)]
    #[schemars(range(min = SMALLEST_LEASE, max = MAX_MOST))]
    most: Option<u64>,
    /// a rate such as `50/s`
    #[serde(default)]
    from: Option<String>,
}

impl LeaseFile {
    /// The terms, and the windows marked as those of a limit with leases.
    ///
    /// # Errors
    /// The field, its value and the remedy.
    pub(super) fn read(
        &self,
        windows: &mut [BucketSpec],
        accepts_quotas: bool,
    ) -> Result<LeaseTerms, String> {
        if accepts_quotas {
            let why = "a limit with `quota_from_request` cannot have leases, because each request for a key may carry another quota: remove one of the two";
            return Err(why.to_owned());
        }
        let terms = LeaseTerms {
            longest_us: micros(self.longest()?),
            most: self.most()?,
            from_per_s: self.rate_per_s()?,
        };
        for spec in windows.iter_mut() {
            let leased = spec.leased(terms.longest_us);
            let named = |why| format!("the window `{}`: {why}", window_name(spec));
            spec.algorithm = leased.map_err(named)?;
        }
        for spec in windows.iter() {
            let held_back = reserve(&terms, std::slice::from_ref(spec));
            if spec.most_at_once() < held_back.saturating_add(2 * SMALLEST_LEASE) {
                return Err(format!(
                    "the window `{}` with room for {} units has no room for a lease: {held_back} units stay in reserve (twice what comes back in `longest`), and half of the rest must be at least {SMALLEST_LEASE}: shorten `longest`, or remove `lease`",
                    window_name(spec),
                    spec.most_at_once()
                ));
            }
        }
        Ok(terms)
    }

    fn longest(&self) -> Result<Duration, String> {
        let text = self.longest.as_deref().unwrap_or(DEFAULT_LONGEST);
        let longest = duration(text).map_err(|why| format!("`longest`: {why}"))?;
        if longest > MAX_LONGEST {
            return Err(format!(
                "`longest` is {longest:?}: use at most {MAX_LONGEST:?}, or resets take effect too late"
            ));
        }
        Ok(longest)
    }

    fn most(&self) -> Result<u64, String> {
        let most = self.most.unwrap_or(DEFAULT_MOST);
        if !(SMALLEST_LEASE..=MAX_MOST).contains(&most) {
            return Err(format!(
                "`most` is {most}: use {SMALLEST_LEASE} to {MAX_MOST}"
            ));
        }
        Ok(most)
    }

    fn rate_per_s(&self) -> Result<u64, String> {
        let text = self.from.as_deref().unwrap_or(DEFAULT_FROM);
        let number = text
            .strip_suffix("/s")
            .and_then(|number| number.parse().ok());
        number
            .filter(|per_s| (1..=MAX_MOST).contains(per_s))
            .ok_or_else(|| {
                let shown = shown(text);
                format!("`from`: {shown} is not a rate of 1/s to {MAX_MOST}/s, such as `50/s`")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::test_table::{has_all, rows};
    use sluicegate_engine::Algorithm;

    fn terms(algorithm: &str, windows: &str, more: &str) -> Result<LeaseTerms, String> {
        let policy = format!(
            "limits:\n  l:\n    algorithm: {algorithm}\n    windows: [{windows}]\n    {more}\n"
        );
        let policy = Policy::parse(&policy)?;
        let limit = policy.limit("l").unwrap();
        assert!(limit.windows.iter().all(is_marked));
        Ok(limit.lease.unwrap())
    }

    fn is_marked(spec: &BucketSpec) -> bool {
        let algorithm = spec.algorithm;
        !matches!(algorithm, Algorithm::SlidingWindow { leased: false, .. })
    }

    const MINUTE: &str = "{ quota: 60000, per: 1m }";

    #[test]
    fn a_lease_has_defaults_and_each_can_be_given() {
        let all = "lease: { longest: 250ms, most: 64, from: 7/s }";
        let given = LeaseTerms {
            longest_us: 250_000,
            most: 64,
            from_per_s: 7,
        };
        assert_eq!(terms("sliding_window", MINUTE, all), Ok(given));
        let default = LeaseTerms {
            longest_us: 100_000,
            most: 1_000,
            from_per_s: 50,
        };
        for algorithm in ["sliding_window", "fixed_window"] {
            assert_eq!(terms(algorithm, MINUTE, "lease: {}"), Ok(default));
        }
        let bucket = "{ quota: 60000, per: 1m, burst: 316 }";
        assert_eq!(terms("token_bucket", bucket, "lease: {}"), Ok(default));
        let month = "{ quota: 60000, per: month }, { quota: 900, per: 1s }";
        assert_eq!(terms("fixed_window", month, "lease: {}"), Ok(default));
    }

    #[test]
    fn without_lease_nothing_is_marked() {
        let window = "{ algorithm: sliding_window, windows: [{ quota: 5, per: 1s }] }";
        let policy = Policy::parse(&format!("limits: {{ l: {window} }}")).unwrap();
        let limit = policy.limit("l").unwrap();
        assert_eq!(limit.lease, None);
        assert!(!is_marked(&limit.windows[0]));
    }

    #[test]
    fn what_cannot_be_leased_is_refused_with_field_value_and_remedy() {
        let table = r"
            sliding_log | MINUTE | lease: {} | `sliding_window`, sliding_log
            token_bucket | { quota: 600000, per: 1m, burst: 1000 } | lease: {} | burst of 1000, `longest`
            token_bucket | { quota: 60000, per: 1m, burst: 315 } | lease: {} | room for 215 units, 200 units, `longest`
            sliding_window | MINUTE | lease: {}\n    quota_from_request: { max: 70000 } | `quota_from_request`, remove
            sliding_window | { quota: 35, per: 1m }, { quota: 19, per: 1s } | lease: {} | window `1s`, 19, 4 units, `longest`
            sliding_window | MINUTE | lease: { longest: soon } | `longest`, soon
            sliding_window | MINUTE | lease: { longest: 11s } | `longest`, 11s, 10s
            sliding_window | MINUTE | lease: { most: 7 } | `most` is 7, 8 to
            sliding_window | MINUTE | lease: { most: 1000001 } | `most`, 1000000
            sliding_window | MINUTE | lease: { from: 50 } | `from`, 50/s
            sliding_window | MINUTE | lease: { from: 0/s } | `from`, 0/s, 1/s
            sliding_window | MINUTE | lease: { form: 5/s } | `form`, `from`
        ";
        for [algorithm, windows, more, named] in rows(table) {
            let windows = windows.replace("MINUTE", MINUTE);
            let why = terms(&algorithm, &windows, &more).unwrap_err();
            has_all(&why, "line 5");
            has_all(&why, &named);
        }
    }
}
