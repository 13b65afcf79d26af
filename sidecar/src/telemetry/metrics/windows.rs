//! The windows of the limits in force: quota, length and burst, so that a panel can show use against the limit.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::GaugeVec;
use sluicegate_engine::{Algorithm, BucketSpec};

use super::families::Families;
use crate::policy::{Policy, window_name};

/// Those that have series: by the limit's name and the window's.
#[derive(Debug, Default)]
pub struct WindowMetrics {
    in_force: Mutex<BTreeMap<(String, String), BucketSpec>>,
}

impl WindowMetrics {
    /// Makes the series of a policy's windows, and removes those of windows that it does not have.
    pub fn policy_loaded(&self, families: &Families, policy: &Policy, unix_ms: u64) {
        let windows = policy.limits().flat_map(|limit| {
            let named = limit.windows.iter();
            named.map(|spec| ((limit.name.clone(), window_name(spec)), *spec))
        });
        let next: BTreeMap<_, _> = windows.collect();
        let mut in_force = self.in_force();
        for (gone, _) in in_force
            .iter()
            .filter(|(window, _)| !next.contains_key(*window))
        {
            for gauges in [&families.quota, &families.window_seconds, &families.burst] {
                remove(gauges, gone);
            }
        }
        for (window, spec) in &next {
            let labels = [window.0.as_str(), &window.1];
            families
                .quota
                .with_label_values(&labels)
                .set(float(spec.quota));
            let seconds = families.window_seconds.with_label_values(&labels);
            seconds.set(seconds_of(spec, unix_ms));
            match spec.algorithm {
                Algorithm::TokenBucket { burst } => {
                    families.burst.with_label_values(&labels).set(float(burst));
                }
                _ => remove(&families.burst, window),
            }
        }
        *in_force = next;
    }

    /// Calendar windows differ in length: sets that of the one that it is now.
    pub fn refresh(&self, families: &Families, unix_ms: u64) {
        for (window, spec) in self.in_force().iter() {
            if let Algorithm::CalendarWindow(_) = spec.algorithm {
                let labels = [window.0.as_str(), &window.1];
                let seconds = families.window_seconds.with_label_values(&labels);
                seconds.set(seconds_of(spec, unix_ms));
            }
        }
    }

    fn in_force(&self) -> MutexGuard<'_, BTreeMap<(String, String), BucketSpec>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(gauges: &GaugeVec, window: &(String, String)) {
    // Not all windows have all gauges.
    let _ = gauges.remove_label_values(&[&window.0, &window.1]);
}

fn seconds_of(spec: &BucketSpec, unix_ms: u64) -> f64 {
    float(spec.length_us(unix_ms.saturating_mul(1_000))) / 1e6
}

/// Quotas and windows are under 2^53, where doubles are exact.
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample lines of these metrics after each of these policies, by this clock.
    fn after(policies: &[&str], unix_ms: u64) -> Vec<String> {
        let (families, windows) = (Families::new().unwrap(), WindowMetrics::default());
        for text in policies {
            let policy = Policy::parse(&format!("limits:{text}")).unwrap();
            windows.policy_loaded(&families, &policy, 0);
        }
        windows.refresh(&families, unix_ms);
        let text = prometheus::TextEncoder::new();
        let text = text.encode_to_string(&families.registry.gather()).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("sluicegate_limit_"));
        let names = ["quota{", "window_seconds{", "burst{"];
        let lines = lines.filter(|line| names.iter().any(|name| line.starts_with(name)));
        lines.map(str::to_owned).collect()
    }

    const PLAIN: &str = "
  l:
    algorithm: sliding_log
    windows: [{ quota: 10, per: 1s }, { quota: 120, per: 1m }]";
    const TOKENS: &str = "
  l:
    algorithm: token_bucket
    windows: [{ quota: 100, per: 1m, burst: 7 }]";
    const MONTH: &str = "
  l:
    algorithm: fixed_window
    windows: [{ quota: 100, per: month, time_zone: Europe/Berlin }]";

    #[test]
    fn each_window_has_its_quota_its_length_and_its_burst() {
        let plain = r#"quota{limit="l",window="1m"} 120
quota{limit="l",window="1s"} 10
window_seconds{limit="l",window="1m"} 60
window_seconds{limit="l",window="1s"} 1"#;
        assert_eq!(after(&[PLAIN], 0).join("\n"), plain);
        let tokens = r#"burst{limit="l",window="1m"} 7
quota{limit="l",window="1m"} 100
window_seconds{limit="l",window="1m"} 60"#;
        assert_eq!(after(&[TOKENS], 0).join("\n"), tokens);
    }

    #[test]
    fn windows_that_a_reload_took_away_are_gone_and_others_have_their_new_quotas() {
        let raised = PLAIN.replace("quota: 120", "quota: 240");
        let quota = &after(&[PLAIN, &raised], 0)[0];
        assert_eq!(quota, r#"quota{limit="l",window="1m"} 240"#);
        assert_eq!(after(&[TOKENS, PLAIN], 0), after(&[PLAIN], 0));
        assert_eq!(after(&[PLAIN, TOKENS], 0), after(&[TOKENS], 0));
    }

    #[test]
    fn a_calendar_window_is_as_long_as_the_one_that_it_is_now() {
        // 10 February and 10 March 2028: a leap year's February, and a month with a day of 23 hours.
        for (unix_s, seconds) in [
            (1_833_796_800, 29 * 86_400),
            (1_836_302_400, 31 * 86_400 - 3_600),
        ] {
            let expected =
                format!(r#"window_seconds{{limit="l",window="month Europe/Berlin"}} {seconds}"#);
            assert_eq!(after(&[MONTH], unix_s * 1_000)[1], expected);
        }
    }
}
