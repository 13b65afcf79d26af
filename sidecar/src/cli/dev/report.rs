//! What `sluicegate dev` tells while it runs, a line each. Pure.

use serde_json::Value;

use crate::cli::output::UNTIL_CHANGED;

/// What a line of Envoy's says: its log as it is; its access log if the filter answered a request, or had no verdict.
pub fn of_line(line: &[u8]) -> Option<String> {
    let Ok(entry) = serde_json::from_slice::<Value>(line) else {
        return Some(format!("envoy: {}\n", String::from_utf8_lossy(line)));
    };
    let text = |field: &str| entry.get(field).and_then(Value::as_str);
    let ours = |field: &str| text(field)?.strip_prefix("sluicegate_");
    // What shadow rules alone have decided is nothing that a client has seen.
    let state = ours("sluicegate").filter(|state| !state.starts_with("shadow"));
    let why = ours("details").or(state)?;
    let (status, method) = (entry.get("status")?, text("method")?);
    let request = format!("{status} {method} {}", text("path")?);
    let Some(limit) = why.strip_prefix("denied").map(|why| named(why, "limit")) else {
        return Some(format!("{request}  {why}\n"));
    };
    let subject = ours("sluicegate").map_or("", |state| named(state, "subject"));
    let due = match text("retry_after_ms").and_then(|ms| ms.parse::<u64>().ok()) {
        // Rounded up: an earlier retry is denied again.
        Some(ms) => format!(
            "retry in {}.{}s",
            ms.div_ceil(100) / 10,
            ms.div_ceil(100) % 10
        ),
        None => UNTIL_CHANGED.to_owned(),
    };
    Some(format!("{request}  {limit}  key {subject}  {due}\n"))
}

/// The value with this name, as in `{rule=per-key,limit=per-key}`; the filter leaves out what is uncertain.
fn named<'t>(text: &'t str, name: &str) -> &'t str {
    let mut pairs = text.split(['{', ',', '}']);
    let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_tells_of_a_denial_who_by_which_limit_and_for_how_long() {
        let entry = |status: u16, details: &str, state: Option<&str>, retry: Option<&str>| {
            let entry = json!({ "method": "GET", "path": "/v1/x", "status": status, "details": details,
                "sluicegate": state, "retry_after_ms": retry });
            of_line(entry.to_string().as_bytes())
        };
        let details = "sluicegate_denied{rule=r,limit=per-key}";
        let of_key = Some("sluicegate_denied{subject=3f2a91c04d17}");
        let unmetered = Some("sluicegate_unmetered{rule=r,reason=timeout}");
        let shadow = Some("sluicegate_shadow{rule=r,limit=l,verdict=denied}");
        let missing = "sluicegate_missing_part{rule=r,limit=l}";
        for (told, line) in [
            (
                entry(429, details, of_key, Some("1701")),
                Some("429 GET /v1/x  per-key  key 3f2a91c04d17  retry in 1.8s\n"),
            ),
            (
                entry(429, details, of_key, None),
                Some(
                    "429 GET /v1/x  per-key  key 3f2a91c04d17  blocked until an operator changes that\n",
                ),
            ),
            (
                entry(403, missing, None, None),
                Some("403 GET /v1/x  missing_part{rule=r,limit=l}\n"),
            ),
            (
                entry(200, "via_upstream", unmetered, None),
                Some("200 GET /v1/x  unmetered{rule=r,reason=timeout}\n"),
            ),
            (entry(200, "via_upstream", shadow, None), None),
            (entry(429, "via_upstream", None, Some("5")), None),
            (
                of_line(b"[warning] \xff"),
                Some("envoy: [warning] \u{fffd}\n"),
            ),
        ] {
            assert_eq!(told.as_deref(), line);
        }
    }
}
