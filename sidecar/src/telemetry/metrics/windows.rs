//! The windows of the limits in force: quota, length and burst, so that a panel can show use against the limit.

use prometheus::GaugeVec;

use super::families::Families;
use crate::policy::{Policy, window_name};

/// Sets the gauges of a policy's windows, and removes those of others. Calendar windows differ in length: theirs is that of the
/// one that it is now.
pub fn set(families: &Families, policy: &Policy, unix_ms: u64) {
    for gauges in [&families.quota, &families.window_seconds, &families.burst] {
        gauges.reset();
    }
    let windows = policy.limits().flat_map(|limit| {
        let of_limit = limit.windows.iter();
        of_limit.map(|spec| (limit.name.as_str(), spec))
    });
    for (limit, spec) in windows {
        let labels = [limit, &window_name(spec)];
        // Quotas and windows are under 2^53, where doubles are exact.
        let set = |gauges: &GaugeVec, value| gauges.with_label_values(&labels).set(value);
        set(&families.quota, spec.quota as f64);
        // What is in use at once has no time.
        if !spec.has_slots() {
            let length_us = spec.length_us(unix_ms.saturating_mul(1_000));
            set(&families.window_seconds, length_us as f64 / 1e6);
        }
        if spec.is_level() {
            set(&families.burst, spec.most_at_once() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    /// The sample lines of these metrics after each of these policies, by this clock.
    fn after(policies: &[&str], unix_ms: u64) -> Vec<String> {
        let registry = Registry::new();
        let families = Families::register(&registry).unwrap();
        for text in policies {
            let policy = Policy::parse(&format!("limits:{text}")).unwrap();
            set(&families, &policy, unix_ms);
        }
        let text = prometheus::TextEncoder::new();
        let text = text.encode_to_string(&registry.gather()).unwrap();
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
    fn slots_have_a_quota_and_no_time() {
        let slots = "\n  l: { algorithm: concurrency, windows: [{ quota: 32, per: 30s }] }";
        assert_eq!(
            after(&[slots], 0),
            [r#"quota{limit="l",window="at once"} 32"#]
        );
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
