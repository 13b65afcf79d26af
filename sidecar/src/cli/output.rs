//! Output formats of commands: text or one JSON object.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::Failure;
use super::stdout::print;

/// `--output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    #[default]
    Text,
    /// JSON for programs.
    Json,
}

impl Output {
    /// Prints a value.
    pub fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        print(&self.format(value, text)?)
    }

    /// What `print` prints.
    pub fn format<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<String, Failure> {
        match self {
            Self::Text => Ok(text(value)),
            Self::Json => json(value),
        }
    }
}

/// A JSON value as text.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value).map_err(Failure::system)?;
    Ok(json + "\n")
}

/// How many errors and warnings were found, for people.
pub fn totals(errors: usize, warnings: usize) -> String {
    format!(
        "{}, {}",
        counted(errors, "error"),
        counted(warnings, "warning")
    )
}

/// So many of these.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// In place of a time, of a denial that has none.
pub const UNTIL_CHANGED: &str = "blocked until an operator changes that";

/// The same where a limit allows nothing.
pub const NOT_AT_ALL: &str = "is not allowed at all";

/// A duration in milliseconds, formatted for people; rounded up to whole seconds from ten seconds on.
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = match self.0 {
            exact @ ..10_000 => Duration::from_millis(exact),
            long => Duration::from_secs(long.div_ceil(1_000)),
        };
        humantime::format_duration(span).fmt(f)
    }
}

/// Where units are left: `left in a window of 1m`, `at once left`.
pub fn window(window_ms: u64, at_once: bool) -> String {
    match at_once {
        true => "at once left".to_owned(),
        false => format!("left in a window of {}", Span(window_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_exact_while_that_matters() {
        assert_eq!(Span(1_250).to_string(), "1s 250ms");
        assert_eq!(Span(3_600_001).to_string(), "1h 1s");
    }
}
