//! Findings about the settings around the filter in an Envoy file.

use crate::{GOOD, envoy, run};

#[test]
fn a_peer_address_that_a_client_can_forge_is_found() {
    let file = envoy(GOOD).replace("use_remote_address: true", "codec_type: AUTO");
    let (_, printed) = run(&["check-config"], false, &file);
    assert!(
        printed.contains("file.yaml:35: warning") && printed.contains("use_remote_address"),
        "{printed}"
    );
}

/// Changes the settings around the filter in a valid file; returns the output of `check-config`.
fn around(from: &str, to: &str, plugin: &str) -> String {
    let file = envoy(plugin);
    assert!(file.contains(from), "{from}");
    run(&["check-config"], false, &file.replacen(from, to, 1)).1
}

#[test]
fn f20_a_connection_manager_that_allows_underscores_in_headers_is_found_once() {
    let option = "headers_with_underscores_action: REJECT_REQUEST";
    let two = GOOD.replace(
        "{ constant: everyone }",
        "{ header: X-Other, trusted: true }, { address: {} }",
    );
    for (action, count) in [("ALLOW", 1), ("DROP_HEADER", 0), ("REJECT_REQUEST", 0)] {
        let printed = around(
            option,
            &format!("headers_with_underscores_action: {action}"),
            &two,
        );
        assert_eq!(
            printed.matches("headers_with_underscores_action").count(),
            count,
            "{printed}"
        );
        assert_eq!(
            printed.matches("`x_api_key`").count(),
            2 * count,
            "{printed}"
        );
    }
    let printed = around(
        option,
        "idle_timeout: 1s",
        &GOOD.replace("header: x-api-key", "header: key"),
    );
    assert!(!printed.contains("underscores"), "{printed}");
    let (_, printed) = run(&["check-config"], false, GOOD);
    assert!(
        !printed.contains("underscores"),
        "the file has no connection manager: {printed}"
    );
}

#[test]
fn f20_a_token_that_is_verified_after_the_filter_is_found() {
    let plugin = GOOD.replace(
        "{ header: x-api-key }",
        "{ jwt: { payload: p, claim: sub } }",
    );
    let jwt = "- name: envoy.filters.http.jwt_authn\n                  ";
    let filters = "http_filters:\n                  ";
    let behind = format!("{}                  {jwt}\n", envoy(&plugin));
    let (_, printed) = run(&["check-config"], false, &behind);
    assert!(
        printed.contains("put `jwt_authn` before this filter"),
        "{printed}"
    );
    assert!(
        printed.contains("file.yaml:26: warning: `rules[0].checks[0].key[0].jwt`"),
        "{printed}"
    );
    let before = behind.replacen(filters, &format!("{filters}{jwt}"), 1);
    for fine in [before, envoy(&plugin)] {
        let (_, printed) = run(&["check-config"], false, &fine);
        assert!(!printed.contains("jwt_authn"), "{printed}");
    }
    let (_, printed) = run(
        &["check-config"],
        false,
        &behind.replace("{ jwt: { payload: p, claim: sub } }", "{ header: key }"),
    );
    assert!(!printed.contains("jwt_authn"), "{printed}");
}

#[test]
fn f14_the_flag_that_makes_envoy_buffer_bodies_is_found() {
    let name = "                        name: sluicegate\n";
    let flag = format!("{name}                        allow_on_headers_stop_iteration: true\n");
    let printed = around(name, &flag, GOOD);
    assert!(
        printed.contains("this filter does not need it"),
        "{printed}"
    );
}

#[test]
fn a_cluster_that_the_file_lacks_may_come_from_a_control_plane() {
    let plugin = GOOD.replace("cluster: sluicegate", "cluster: elsewhere");
    let printed = around(
        "use_remote_address: true",
        "use_remote_address: true",
        &plugin,
    );
    assert!(
        printed.contains(
            "error: `sidecar.cluster`: this file has no cluster `elsewhere`, only `sluicegate`"
        ),
        "{printed}"
    );
    let dynamic = "dynamic_resources: { cds_config: { ads: {} } }\nstatic_resources:";
    let printed = around("static_resources:", dynamic, &plugin);
    assert!(
        printed.contains("warning: `sidecar.cluster`") && printed.contains("cds_config"),
        "{printed}"
    );
}

#[test]
fn a_filter_that_stays_dead_or_fails_open_is_found() {
    let set = "failure_policy: FAIL_RELOAD";
    for (to, says) in [
        (
            "reloadable: true",
            "`failure_policy`: if the filter's VM fails once",
        ),
        (
            "failure_policy: FAIL_OPEN",
            "`failure_policy`: all requests pass unmetered",
        ),
        (
            "fail_open: true",
            "`fail_open`: all requests pass unmetered",
        ),
    ] {
        let printed = around(set, to, GOOD);
        assert!(
            printed.contains(&format!("warning: {says}")),
            "{to}: {printed}"
        );
    }
    let printed = around(set, "failure_policy: FAIL_CLOSED", GOOD);
    assert!(printed.contains("0 warnings"), "it was chosen: {printed}");
}
