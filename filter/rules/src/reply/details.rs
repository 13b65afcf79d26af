//! Response code details: text in Envoy's access log for our replies (`%RESPONSE_CODE_DETAILS%`) and for requests that
//! were let through unmetered. They consist of names from the configuration, so they contain no whitespace (which Envoy
//! does not allow there) and nothing from a key or an answer.

use std::fmt::Write;

/// The prefix of all our response code details.
pub const DETAILS_PREFIX: &str = "sluicegate_";

/// Whether a response with these details (Envoy's attribute `response.code_details`) is the reply of a Sluicegate
/// filter, either this one or another in the same chain.
pub fn is_sluicegate_reply(code_details: &[u8]) -> bool {
    code_details.starts_with(DETAILS_PREFIX.as_bytes())
}

/// `sluicegate_denied{rule=per-key,limit=per-key}`. Unknown labels are left out.
pub(crate) fn details(what: &str, labels: &[(&str, Option<&str>)]) -> String {
    let mut text = format!("{DETAILS_PREFIX}{what}{{");
    for (name, value) in labels {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name}={value},");
        }
    }
    // The last comma, or the brace if there are no labels.
    if text.pop() == Some(',') {
        text.push('}');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_sluicegate_filter_is_recognized_by_its_details() {
        assert!(is_sluicegate_reply(b"sluicegate_denied{rule=r,limit=l}"));
        for other in ["", "via_upstream", "sluicegate", "local_rate_limited"] {
            assert!(!is_sluicegate_reply(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn unknown_labels_are_left_out() {
        let (a, b) = (("a", Some("1")), ("b", Some("2")));
        assert_eq!(details("x", &[a, b]), "sluicegate_x{a=1,b=2}");
        assert_eq!(details("x", &[("a", None), b]), "sluicegate_x{b=2}");
        assert_eq!(details("x", &[("a", None)]), "sluicegate_x");
    }
}
