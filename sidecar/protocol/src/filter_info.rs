//! What a filter tells of itself, in a header of some of its calls: older sidecars ignore a header, but not a new field.

use std::fmt;

/// The header: `0.1.0 configuration=2d0f3b8e61a4`.
pub const FILTER_HEADER: &str = "sluicegate-filter";

/// The header by which a filter says who it is where slots are taken, renewed or freed: [`crate::RulesReport::vm`].
pub const VM_HEADER: &str = "sluicegate-vm";

const CONFIGURATION: &str = " configuration=";
const MAX_VERSION_BYTES: usize = 32;
/// Digits of a configuration's fingerprint, and of the digest of rules.
pub const DIGEST_DIGITS: usize = 12;

/// Which filter asks, and which configuration it has in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterInfo<'a> {
    /// The filter's version.
    pub version: &'a str,
    /// The fingerprint of its configuration: 12 hexadecimal digits.
    pub configuration: &'a str,
}

impl<'a> FilterInfo<'a> {
    /// Reads the header's value. `None` if no filter can have written it: both become labels of a metric.
    pub fn read(value: &'a str) -> Option<Self> {
        let (version, configuration) = value.split_once(CONFIGURATION)?;
        let of_version = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'+');
        let valid = (1..=MAX_VERSION_BYTES).contains(&version.len())
            && version.bytes().all(of_version)
            && is_digits(configuration, DIGEST_DIGITS);
        valid.then_some(Self {
            version,
            configuration,
        })
    }
}

impl fmt::Display for FilterInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version)?;
        f.write_str(CONFIGURATION)?;
        f.write_str(self.configuration)
    }
}

/// Whether a text consists of exactly `count` hexadecimal digits, in lower case.
pub fn is_digits(text: &str, count: usize) -> bool {
    let is_digit = |c| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    text.len() == count && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_filter_writes_is_read_and_nothing_else() {
        let info = FilterInfo {
            version: "0.1.0-rc.1",
            configuration: "2d0f3b8e61a4",
        };
        assert_eq!(FilterInfo::read(&info.to_string()), Some(info));
        for other in [
            "",
            "0.1.0",
            " configuration=2d0f3b8e61a4",
            "0.1.0 configuration=",
            "0.1.0 configuration=2d0f3b8e61a",
            "0.1.0 configuration=2D0F3B8E61A4",
            "0.1.0 configuration=2d0f3b8e61a4 ",
            "0.1\"0 configuration=2d0f3b8e61a4",
            &format!("{} configuration=2d0f3b8e61a4", "1".repeat(33)),
        ] {
            assert_eq!(FilterInfo::read(other), None, "{other:?}");
        }
    }
}
