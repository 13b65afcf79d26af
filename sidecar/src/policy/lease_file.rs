//! A limit's `lease` in the policy file, and its validation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_engine::BucketSpec;
use sluicegate_engine::lease::{LeaseTerms, reserve};

use super::fields::duration;
use super::window_file::window_name;
use crate::clock::micros;

/// Default of `longest`: the first for which the limit has room.
const DEFAULTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];
/// Other sidecars feel a reset by up to `longest` later, and units may lie idle for as long.
const MAX_LONGEST: Duration = Duration::from_secs(10);

/// An entry of `lease`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseFile {
    /// a duration such as `1s`, at most `10s`
    #[serde(default)]
    longest: Option<String>,
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
        let Some(longest) = &self.longest else {
            let [default, shorter] = DEFAULTS;
            return terms(default, windows).or_else(|_| terms(shorter, windows));
        };
        let longest = duration(longest).map_err(|why| format!("`longest`: {why}"))?;
        if longest > MAX_LONGEST {
            return Err(format!(
                "`longest` is {longest:?}: use at most {MAX_LONGEST:?}, or resets take effect too late"
            ));
        }
        terms(longest, windows)
    }
}

/// Marks the windows, if they have room for leases of this length.
fn terms(longest: Duration, windows: &mut [BucketSpec]) -> Result<LeaseTerms, String> {
    let terms = LeaseTerms {
        longest_us: micros(longest),
    };
    let mut marked = windows.to_vec();
    for spec in &mut marked {
        let leased = spec.leased(terms.longest_us);
        let named = |why| format!("the window `{}`: {why}", window_name(spec));
        spec.algorithm = leased.map_err(named)?;
        let held_back = reserve(&terms, std::slice::from_ref(spec));
        if spec.most_at_once() < held_back.saturating_add(2) {
            return Err(format!(
                "the window `{}` with room for {} units has no room for a lease: {held_back} units stay in reserve (twice what comes back in `longest`), and half of the rest must be at least 1: shorten `longest`, or remove `lease`",
                window_name(spec),
                spec.most_at_once()
            ));
        }
    }
    windows.copy_from_slice(&marked);
    Ok(terms)
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
        let all = "lease: { longest: 250ms }";
        let given = LeaseTerms {
            longest_us: 250_000,
        };
        assert_eq!(terms("sliding_window", MINUTE, all), Ok(given));
        let default = LeaseTerms {
            longest_us: 1_000_000,
        };
        let shorter = LeaseTerms {
            longest_us: 100_000,
        };
        for algorithm in ["sliding_window", "fixed_window"] {
            assert_eq!(terms(algorithm, MINUTE, "lease: {}"), Ok(default));
        }
        let bucket = "{ quota: 60000, per: 1m, burst: 316 }";
        assert_eq!(terms("token_bucket", bucket, "lease: {}"), Ok(shorter));
        let month = "{ quota: 60000, per: month }, { quota: 900, per: 1s }";
        assert_eq!(terms("fixed_window", month, "lease: {}"), Ok(shorter));
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
            token_bucket | { quota: 60000, per: 1m, burst: 301 } | lease: {} | room for 201 units, 200 units, `longest`
            sliding_window | MINUTE | lease: {}\n    quota_from_request: { max: 70000 } | `quota_from_request`, remove
            sliding_window | { quota: 35, per: 1m }, { quota: 2, per: 1s } | lease: {} | window `1s`, 2 units, 1 units, `longest`
            sliding_window | MINUTE | lease: { longest: soon } | `longest`, soon
            sliding_window | MINUTE | lease: { longest: 11s } | `longest`, 11s, 10s
            sliding_window | MINUTE | lease: { longer: 1s } | `longer`, `longest`
        ";
        for [algorithm, windows, more, named] in rows(table) {
            let windows = windows.replace("MINUTE", MINUTE);
            let why = terms(&algorithm, &windows, &more).unwrap_err();
            has_all(&why, "line 5");
            has_all(&why, &named);
        }
    }
}
