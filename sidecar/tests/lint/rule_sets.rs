//! Rules in the policy, which plugins of version 2 name.

use std::io::Write;

use super::{GOOD, check_stream, envoy, indented, is_without_findings, pushed, run_with};
use crate::support::{has, has_all, lacks};

fn check(policy: &str, file: Option<&str>) -> (i32, String) {
    run_with(&["check-config"], Some(policy), file)
}

/// The digest that the command prints for a policy.
fn digest(printed: &str) -> &str {
    let (_, rest) = printed.split_once("policy.yaml: rules ").unwrap();
    rest.lines().next().unwrap()
}

#[test]
fn the_rules_of_a_policy_are_checked_with_and_without_a_plugin() {
    let (plugin, policy) = pushed(GOOD);
    for file in [None, Some(envoy(&plugin)), Some(plugin)] {
        let checked = check(&policy, file.as_deref());
        is_without_findings(&checked);
        assert_eq!(digest(&checked.1).len(), 12, "{}", checked.1);
        let says = "the policy is valid; no filter configuration was checked";
        assert_eq!(checked.1.contains(says), file.is_none(), "{}", checked.1);
    }
    let changed = policy.replace("cost: 5", "cost: 6");
    let digests = [&policy, &changed].map(|policy| digest(&check(policy, None).1).to_owned());
    assert_ne!(digests[0], digests[1]);
}

#[test]
fn a_set_that_a_change_takes_away_is_warned_of_without_an_envoy_too() {
    let (_, policy) = pushed(GOOD);
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before.yaml");
    std::fs::write(&before, format!("{policy}  other: {{ rules: [] }}\n")).unwrap();
    let command = ["check-config", "--before", before.to_str().unwrap()];
    let (status, printed) = run_with(&command, Some(&policy), None);
    let says =
        "policy.yaml:1: warning: `rules` has no set `other` any more: an Envoy that lists it";
    has(&printed, says);
    has(&printed, "0 errors, 1 warning");
    assert_eq!(status, 0, "{printed}");
    let kept = format!("{policy}  other: {{ rules: [] }}\n");
    is_without_findings(&run_with(&command, Some(&kept), None));
}

#[test]
fn what_a_change_does_to_counts_sets_and_the_running_sidecar_is_told() {
    let (_, before) = pushed(GOOD);
    let mut old = tempfile::NamedTempFile::new().unwrap();
    old.write_all(before.as_bytes()).unwrap();
    let after = before.replace("redis://redis:6379", "redis://other:6379");
    let after = after.replace("key: [{ address: {} }]", "key: [{ host: true }]");
    let told = |after: &str| {
        let arguments = ["check-config", "--before", old.path().to_str().unwrap()];
        let (status, printed) = run_with(&arguments, Some(after), None);
        assert_eq!(status, 0, "{printed}");
        printed
    };
    let printed = told(&after);
    has(&printed, "`store` changed, which requires a restart");
    has(
        &printed,
        "per-key: another `key`, whose counts start at zero",
    );
    let printed = told(&before.replace("  gateway:", "  edge:"));
    has(&printed, "rule set gateway renamed to edge");
    lacks(&printed, "zero");
}

#[test]
fn all_mistakes_of_rules_come_in_one_run_at_the_lines_of_their_fields() {
    let (_, policy) = pushed(GOOD);
    let wrong = policy
        .replace("path_prefix: /search", "path_prefix: search")
        .replace("limit: everyone", "limit: evryone")
        .replace("quota: 5000, per: 1s", "quota: 5000, per: 400d")
        .replace("key: [{ address: {} }]", "key: [{ method: true }]");
    let (status, printed) = check(&wrong, None);
    assert_eq!(status, 64);
    for (part, below, says) in [
        (
            "path_prefix: search",
            0,
            "error: `rules.gateway.rules[0].match.path_prefix`: ",
        ),
        (
            "limit: evryone",
            0,
            "error: `rules.gateway.rules[0].checks[1].limit`: the policy has no limit `evryone`: did you mean `everyone`?",
        ),
        (
            "  everyone:",
            2,
            "error: limit `everyone`: window 1: `per` is 34560000s",
        ),
        // Mistakes do not hide what is probably not intended.
        (
            "method: true",
            0,
            "warning: `rules.gateway.rules[1].checks[0].key`: a client can choose",
        ),
    ] {
        let line = wrong.lines().position(|line| line.contains(part)).unwrap();
        has(
            &printed,
            &format!("policy.yaml:{}: {says}", line + 1 + below),
        );
    }
    lacks(&printed, "policy.yaml: rules ");
    has(&printed, "3 errors, 1 warning");
}

#[test]
fn a_set_that_the_policy_lacks_is_found_and_one_that_nothing_names_is_not() {
    let (plugin, policy) = pushed(GOOD);
    let named = |sets: &str| plugin.replace("{ default: gateway }", sets);
    let found = |sets: &str| check(&policy, Some(&envoy(&named(sets)))).1;
    let printed = found("{ default: gatway, others: [gateway, internal] }");
    has(
        &printed,
        "file.yaml:24: error: `rule_sets.default`: the policy has no rule set `gatway`; did you mean `gateway`?",
    );
    let says = "error: `rule_sets.others[1]`: the policy has no rule set `internal`; add it to `rules` in the policy";
    has(&printed, says);
    has(&printed, "2 errors, 0 warnings");
    let more = format!(
        "{policy}  other: {{ rules: [{{ name: o, checks: [{{ limit: loose, key: [{{ constant: c }}] }}], when_unavailable: allow }}] }}\n"
    );
    is_without_findings(&check(&more, Some(&envoy(&plugin))));
    let without = plugin.replace("rule_sets: { default: gateway }\n", "");
    let says = "`rule_sets.default`: the policy has no rule set `default`; add it to `rules` in the policy";
    has(&check(&policy, Some(&envoy(&without))).1, says);
    let renamed = policy.replace("gateway:", "default:");
    is_without_findings(&check(&renamed, Some(&envoy(&without))));
    let alone = envoy(&without).replace("name: sluicegate\n", "name: limits\n");
    is_without_findings(&check(&renamed, Some(&alone)));
    // Rules that two plugins run have their findings once.
    let client = more.replace("constant: c", "method: true");
    let two = envoy(&named("{ default: gateway, others: [other] }"));
    let twice = format!("{two}---\n{two}");
    has(&check(&client, Some(&twice)).1, "0 errors, 1 warning");
}

#[test]
fn what_is_around_a_plugin_is_compared_with_the_rules_that_it_names() {
    let (plugin, policy) = pushed(GOOD);
    let file = envoy(&plugin).replace("use_remote_address: true", "codec_type: AUTO");
    let line = 1 + policy
        .lines()
        .position(|line| line.contains("address: {}"))
        .unwrap();
    let (_, printed) = check(&policy, Some(&file));
    let says =
        "warning: `rules.gateway.rules[1].checks[0].key[0].address`: without `use_remote_address";
    has(&printed, &format!("policy.yaml:{line}: {says}"));
    // What cannot be read has no rules to compare with.
    let (_, printed) = check("rules: [", Some(&file));
    has(&printed, "1 error, ");
    // Without the policy, that is said.
    let (status, printed) = run_with(&["check-config"], None, Some(&file));
    assert_eq!(status, 0);
    has(
        &printed,
        "its rules are in the policy, which was not checked",
    );
}

#[test]
fn the_policy_in_a_config_map_has_the_rules_of_the_plugins() {
    let (plugin, policy) = pushed(GOOD);
    let map = |policy: &str| {
        format!(
            "kind: ConfigMap\nmetadata: {{ name: p, namespace: shop }}\ndata:\n  policy.yaml: |\n{}",
            indented(policy, 4)
        )
    };
    let checked = check_stream(&[&envoy(&plugin), &map(&policy)]);
    is_without_findings(&checked);
    has(
        &checked.1,
        "standard input: ConfigMap shop/p: `data.policy.yaml`: rules ",
    );
    let open = policy.replace("            when_missing: deny\n", "");
    assert_ne!(open, policy);
    let documents = [envoy(&plugin), map(&open)];
    let (_, printed) = check_stream(&[&documents[0], &documents[1]]);
    let stream = documents.join("\n---\n");
    let line = 1 + stream
        .lines()
        .position(|line| line.contains("key: [{ header"))
        .unwrap();
    let at = format!(
        "standard input:{line}: warning: ConfigMap shop/p: `rules.gateway.rules[0].checks[0].key`"
    );
    has_all(&printed, &format!("{at}, when_missing"));
}

/// Filters are told rules without a token.
#[test]
fn a_secret_that_rules_compare_is_reported_and_not_repeated() {
    for (condition, warns) in [
        ("headers: [{ name: x-bypass, equals: s3cret }]", true),
        ("query: [{ name: Token, equals: s3cret }]", true),
        ("not: { headers: [{ name: cookie, equals: s3cret }] }", true),
        ("headers: [{ name: x-plan, equals: gold }]", false),
        (
            "headers: [{ name: authorization, prefix: 'Bearer ' }]",
            false,
        ),
        ("headers: [{ name: x-api-key, present: true }]", false),
    ] {
        let (_, policy) = pushed(&GOOD.replacen("path_prefix: /search", condition, 1));
        let (status, printed) = check(&policy, None);
        assert_eq!(status, 0, "{printed}");
        let says = "warning: `rules.gateway.rules[0].match`: ";
        let warned = printed.contains(says) && printed.contains("must hold no secret");
        assert_eq!(warned, warns, "{condition}: {printed}");
        lacks(&printed, "s3cret");
    }
}
