//! What `sluicegate dev` tells while it runs, a line each. Pure.

use std::sync::Arc;

use serde_json::Value;
use sluicegate::decide::{Epoch, PolicyHandle};
use sluicegate::policy::changes;

/// What was told of the policy.
pub struct Told {
    pub epoch: Arc<Epoch>,
    pub refusal: Option<String>,
}

impl Told {
    /// What is new.
    pub fn news(&mut self, policy: &PolicyHandle) -> Option<String> {
        let now = policy.current();
        if now.policy_number != self.epoch.policy_number {
            let changes = changes(&self.epoch.policy, &now.policy).join("; ");
            self.epoch = now;
            return Some(format!("policy changed: {changes}\n"));
        }
        let refusal = policy.source.refusal();
        if refusal == self.refusal {
            return None;
        }
        self.refusal = refusal;
        let why = self.refusal.as_ref()?;
        Some(format!(
            "refused: {why}; the policy before stays in force\n"
        ))
    }
}

/// What a line of the access log says of a request that the filter answered, or could not decide.
pub fn of_request(line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let text = |field: &str| entry.get(field).and_then(Value::as_str);
    let ours = |field: &str| text(field)?.strip_prefix("sluicegate_");
    let (status, method) = (entry.get("status")?, text("method")?);
    let request = format!("{status} {method} {}", text("path")?);
    let why = ours("details").or_else(|| ours("sluicegate"))?;
    let Some(denied) = why.strip_prefix("denied") else {
        return Some(format!("{request}  {why}\n"));
    };
    let limit = named(denied, "limit").unwrap_or("a limit");
    let key = ours("sluicegate").and_then(|state| named(state, "subject"));
    let mut told = format!("{request}  {limit}  key {}", key.unwrap_or("unknown"));
    if let Some(ms) = text("retry_after_ms").and_then(|ms| ms.parse::<u64>().ok()) {
        // Rounded up: an earlier retry is denied again.
        let tenths = ms.div_ceil(100);
        told += &format!("  retry in {}.{}s", tenths / 10, tenths % 10);
    }
    Some(told + "\n")
}

/// The value with this name, as in `{rule=per-key,limit=per-key}`.
fn named<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = text.split(['{', ',', '}']);
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_tells_of_a_denial_who_by_which_limit_and_for_how_long() {
        let entry = |status: u16, details: &str, state: &str, retry: Option<&str>| {
            let state = (!state.is_empty()).then_some(state);
            let entry = json!({ "method": "GET", "path": "/v1/x", "status": status, "details": details,
                "sluicegate": state, "retry_after_ms": retry });
            of_request(&entry.to_string())
        };
        let of_key = "sluicegate_denied{subject=3f2a91c04d17}";
        for (told, line) in [
            (
                entry(
                    429,
                    "sluicegate_denied{rule=r,limit=per-key}",
                    of_key,
                    Some("1701"),
                ),
                Some("429 GET /v1/x  per-key  key 3f2a91c04d17  retry in 1.8s\n"),
            ),
            (
                entry(429, "sluicegate_denied", "", None),
                Some("429 GET /v1/x  a limit  key unknown\n"),
            ),
            (
                entry(403, "sluicegate_missing_part{rule=r,limit=l}", "", None),
                Some("403 GET /v1/x  missing_part{rule=r,limit=l}\n"),
            ),
            (
                entry(
                    200,
                    "via_upstream",
                    "sluicegate_unmetered{rule=r,reason=timeout}",
                    None,
                ),
                Some("200 GET /v1/x  unmetered{rule=r,reason=timeout}\n"),
            ),
            (entry(429, "via_upstream", "", Some("5")), None),
            (of_request("no JSON"), None),
        ] {
            assert_eq!(told.as_deref(), line);
        }
    }
}
