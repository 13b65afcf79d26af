//! Lines in Envoy's log while verdicts are missing, limited in rate so that an outage cannot fill a disk.

use crate::verdict_error::VerdictError;

/// What an operator can do.
const PAGE: &str = "docs/troubleshooting.md#503-and-other-statuses";
/// At most one line in this time. One second shows an outage at once and allows at most 86,400 lines a day from each
/// worker, however many requests have no verdict.
const LINE_EVERY_US: u64 = 1_000_000;
/// An outage is over when no verdict has been missing for this long: a sidecar that answers every other request has not
/// recovered.
const RECOVERED_AFTER_US: u64 = 10_000_000;

/// Limits the rate of log lines about missing verdicts. One for each configuration.
#[derive(Debug, Default)]
pub struct OutageLog {
    outage: Option<Outage>,
}

/// From the first missing verdict until recovery. Times are those of `note`.
#[derive(Debug, Default)]
struct Outage {
    last_line_us: Option<u64>,
    last_missing_us: u64,
    /// Missing verdicts since the last line.
    unlogged: u64,
}

impl OutageLog {
    /// Whether there is an outage.
    pub const fn is_open(&self) -> bool {
        self.outage.is_some()
    }

    /// Notes that a request had a verdict (`None`), or why it had none. Returns the line to log, if one is due.
    /// `now_us` comes from a clock that does not step.
    pub fn note(&mut self, now_us: u64, outcome: Option<&VerdictError>) -> Option<String> {
        let Some(why) = outcome else {
            return self.recovered(now_us);
        };
        let outage = self.outage.get_or_insert_default();
        outage.last_missing_us = now_us;
        let is_recent = |last_us| now_us.saturating_sub(last_us) < LINE_EVERY_US;
        if outage.last_line_us.is_some_and(is_recent) {
            outage.unlogged = outage.unlogged.saturating_add(1);
            return None;
        }
        outage.last_line_us = Some(now_us);
        let more = more(std::mem::take(&mut outage.unlogged), "; ");
        Some(format!("sluicegate: no verdict: {why} ({PAGE}){more}"))
    }

    fn recovered(&mut self, now_us: u64) -> Option<String> {
        let is_over = |outage: &mut Outage| {
            now_us.saturating_sub(outage.last_missing_us) >= RECOVERED_AFTER_US
        };
        let outage = self.outage.take_if(is_over)?;
        Some(format!(
            "sluicegate: verdicts are back: none missing for {} s{}",
            RECOVERED_AFTER_US / 1_000_000,
            more(outage.unlogged, "; before that, ")
        ))
    }
}

fn more(unlogged: u64, before: &str) -> String {
    if unlogged == 0 {
        return String::new();
    }
    format!("{before}{unlogged} more without a verdict since the last line")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Notes one request every `every_us`, every other without a verdict; returns the lines.
    fn alternating(log: &mut OutageLog, requests: u64, every_us: u64) -> Vec<String> {
        (0..requests)
            .filter_map(|n| {
                let why = n.is_multiple_of(2).then_some(&VerdictError::Timeout);
                log.note(n * every_us, why)
            })
            .collect()
    }

    #[test]
    fn two_hundred_alternating_requests_write_a_handful_of_lines() {
        let mut log = OutageLog::default();
        let lines = alternating(&mut log, 200, 10_000);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        let expected =
            format!("sluicegate: no verdict: the sidecar did not answer in time ({PAGE})");
        assert_eq!(lines[0], expected);
        assert!(lines[1].ends_with("; 49 more without a verdict since the last line"));
        // At one request a second, each missing verdict is logged, and no recovery is.
        let lines = alternating(&mut OutageLog::default(), 200, SECOND);
        assert_eq!(lines.len(), 100);
        assert!(lines.iter().all(|line| line.contains("no verdict")));
    }

    #[test]
    fn log_lines_account_for_every_missing_verdict() {
        let mut log = OutageLog::default();
        let mut accounted = 0;
        let mut count = |line: Option<String>| {
            let Some(line) = line else { return };
            accounted += u64::from(line.contains("no verdict:"));
            let unlogged = line.split("; ").nth(1).unwrap_or_default();
            let digits: String = unlogged.chars().filter(char::is_ascii_digit).collect();
            accounted += digits.parse::<u64>().unwrap_or(0);
        };
        for n in 0..10_000 {
            count(log.note(n * 333, Some(&VerdictError::StoreUnavailable)));
        }
        count(log.note(20 * SECOND, None));
        assert_eq!(accounted, 10_000);
    }

    #[test]
    fn recovery_is_logged_once_and_only_after_ten_seconds() {
        let mut log = OutageLog::default();
        assert!(log.note(0, None).is_none(), "there was no outage");
        assert!(log.note(SECOND, Some(&VerdictError::Full)).is_some());
        assert!(log.note(SECOND + 1, Some(&VerdictError::Full)).is_none());
        assert!(log.note(2 * SECOND, None).is_none(), "not recovered yet");
        assert!(log.note(10 * SECOND, None).is_none());
        let line = log.note(12 * SECOND, None).unwrap();
        assert!(line.contains("verdicts are back"), "{line}");
        assert!(line.contains("1 more without a verdict"), "{line}");
        assert!(log.note(13 * SECOND, None).is_none());
        assert!(log.note(13 * SECOND, Some(&VerdictError::Full)).is_some());
    }
}
