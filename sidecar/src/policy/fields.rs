//! Values of fields that several parts of a policy have.

use std::time::Duration;

use crate::mask::shown;

/// Most bytes of a limit's name, which is a metric label and part of every key in Redis.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// Whether a limit may have this name.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(allowed)
}

/// Units of durations. The library knows more, such as `M`, a month of 30.44 days.
const UNITS: [&str; 6] = ["ms", "s", "m", "h", "d", "w"];

/// A duration of whole milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let shown = shown(text);
    let units = text.split(|c: char| c.is_ascii_digit() || c.is_whitespace());
    let mut units = units.filter(|unit| !unit.is_empty());
    let unknown = units.find(|unit| !UNITS.contains(unit));
    let duration = humantime::parse_duration(text)
        .ok()
        .filter(|_| unknown.is_none())
        .ok_or_else(|| {
            let units = UNITS.join("`, `");
            format!(
                "{shown} is not a duration such as `10s`, `1m` or `24h`, with the units `{units}`"
            )
        })?;
    if duration < Duration::from_millis(1) || duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!(
            "{shown} is not a whole number of milliseconds, at least 1ms"
        ));
    }
    Ok(duration)
}
