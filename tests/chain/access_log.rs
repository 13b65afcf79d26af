//! Envoy's access log for requests that were denied, refused or admitted without a verdict, and for verdicts of shadow rules.

use serde_json::{Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;

use super::support::Chain;

/// The lines of Envoy's access log so far.
pub fn access_log(envoy: &Envoy) -> Vec<Value> {
    let log = envoy.log();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// F15: the log contained only `sluicegate`. F11: it did not tell a sidecar that hangs from one that is down.
#[tokio::test]
async fn envoys_access_log_says_who_was_denied_and_why_and_what_was_let_through_unmetered() {
    let rule = |when: &str| {
        let check =
            json!({ "limit": "per-key", "key": [{ "header": "x-team" }], "when_missing": "deny" });
        json!({ "name": when, "match": { "path": format!("/{when}") }, "checks": [check], "when_unavailable": when })
    };
    let mut trial = rule("allow");
    trial["name"] = json!("trial");
    trial["match"]["path"] = json!("/trial");
    trial["shadow"] = json!(true);
    let mut chain = Chain::hourly(1, json!([rule("deny"), rule("allow"), trial])).await;
    let envoy = &chain.envoy;
    let ask = async |path: &str, team: &str| {
        let fields = [("x-team", team)];
        let fields = if team.is_empty() { &[][..] } else { &fields };
        let path = format!("/{path}?token=secret");
        envoy.get(&path, fields).await.status().as_u16()
    };
    for (path, team, status) in [
        ("deny", "a", 200),
        ("deny", "a", 429),
        ("deny", "", 403),
        ("allow", "b", 200),
        ("trial", "b", 200),
        ("trial", "b", 200),
    ] {
        assert_eq!(ask(path, team).await, status, "{path} {team}");
    }
    chain.sidecar.signal("STOP");
    assert_eq!(
        tokio::join!(ask("deny", "c"), ask("allow", "c")),
        (503, 200)
    );
    chain.sidecar.signal("CONT");
    chain.sidecar.kill();
    assert_eq!(ask("deny", "d").await, 503);
    assert_eq!(ask("allow", "d").await, 200);
    eventually("ten lines", async || access_log(envoy).len() == 10).await;
    let lines = access_log(envoy);
    let of = |path: &str, field: &str| -> Vec<_> {
        let of_path = lines.iter().filter(|line| line["path"] == path);
        of_path.map(|line| line[field].clone()).collect()
    };
    assert_eq!(
        of("/deny", "details"),
        [
            "via_upstream",
            "sluicegate_denied{rule=deny,limit=per-key}",
            "sluicegate_missing_part{rule=deny,limit=per-key}",
            "sluicegate_unavailable{rule=deny,reason=timeout}",
            "sluicegate_unavailable{rule=deny,reason=unreachable}",
        ]
    );
    // The key is that of `explain`; printf %s KEY | sha256sum | cut -c1-20.
    let of_denied = "sluicegate_denied{subject=198169aa87b242e773a2}";
    let states = of("/deny", "sluicegate");
    assert_eq!(states[1], of_denied);
    assert!(
        states.iter().filter(|state| !state.is_null()).count() == 1,
        "{states:?}"
    );
    assert_eq!(of("/allow", "details"), ["via_upstream"; 3]);
    assert_eq!(
        of("/allow", "sluicegate"),
        [
            Value::Null,
            json!("sluicegate_unmetered{rule=allow,reason=timeout}"),
            json!("sluicegate_unmetered{rule=allow,reason=unreachable}"),
        ]
    );
    // `sluicegate compare` reads these.
    let told = |verdict: &str| {
        json!(format!(
            "sluicegate_shadow{{rule=trial,limit=per-key,verdict={verdict}}}"
        ))
    };
    assert_eq!(of("/trial", "sluicegate"), ["admitted", "denied"].map(told));
    let counts = [
        ("error_no_answer", 2),
        ("error_unreachable", 2),
        ("error_status", 0),
    ];
    envoy.counts(&counts).await;
}
