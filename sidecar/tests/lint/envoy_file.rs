//! Findings about the settings around the filter in an Envoy file.

use super::{GOOD, checked, envoy, good, has, has_all, lacks, pushed, run_with};

/// What `check-config` prints of a configuration's files, after this change of the Envoy file.
fn changed(configuration: &str, change: impl FnOnce(String) -> String) -> String {
    let (plugin, policy) = pushed(configuration);
    let file = change(envoy(&plugin));
    run_with(&["check-config"], Some(&policy), Some(&file)).1
}

/// The same of a change of the settings around the filter.
fn around(from: &str, to: &str, configuration: &str) -> String {
    changed(configuration, |file| {
        has(&file, from);
        file.replacen(from, to, 1)
    })
}

#[test]
fn settings_around_the_filter_that_make_it_weaker_are_found() {
    let table = r"
        use_remote_address: true | codec_type: AUTO | warning: `rules.gateway.rules[1].checks[0].key[0].address`
        use_remote_address: true | codec_type: AUTO | use_remote_address
        failure_policy: FAIL_RELOAD | reloadable: true | warning: `failure_policy`: if the filter's VM fails once
        failure_policy: FAIL_RELOAD | failure_policy: FAIL_OPEN | warning: `failure_policy`: all requests pass unmetered
        failure_policy: FAIL_RELOAD | fail_open: true | warning: `fail_open`: all requests pass unmetered
        request_timeout: 30s | codec_type: AUTO | warning: `request_timeout`: requests that wait when the filter's VM dies hang
        request_timeout: 30s | stream_idle_timeout: 30s | 0 warnings
        failure_policy: FAIL_RELOAD | failure_policy: FAIL_CLOSED | warning: `failure_policy`: if the filter's VM fails once, every request gets an error
    ";
    for line in table.trim().lines() {
        let row: Vec<_> = line.trim().split(" | ").collect();
        has(&around(row[0], row[1], GOOD), row[2]);
    }
}

#[test]
fn a_connection_manager_that_allows_underscores_in_headers_is_found_once() {
    let option = "headers_with_underscores_action: REJECT_REQUEST";
    let keys = "{ header: X-Other, trusted: true }, { address: {} }";
    let two = GOOD.replace("{ constant: everyone }", keys);
    for (action, count) in [("ALLOW", 1), ("DROP_HEADER", 0), ("REJECT_REQUEST", 0)] {
        let action = format!("headers_with_underscores_action: {action}");
        let printed = around(option, &action, &two);
        let texts = ["headers_with_underscores_action", "`x_api_key`"];
        let counts = texts.map(|text| printed.matches(text).count());
        assert_eq!(counts, [count, 2 * count], "{printed}");
    }
    let plain = GOOD.replace("header: x-api-key", "header: key");
    lacks(&around(option, "idle_timeout: 1s", &plain), "underscores");
    // The file has no connection manager.
    lacks(&changed(GOOD, |_| pushed(GOOD).0), "underscores");
}

#[test]
fn a_token_that_is_verified_after_the_filter_is_found() {
    let key = "{ jwt: { payload: p, claim: sub } }";
    let plugin = GOOD.replace("{ header: x-api-key }", key);
    let jwt = "- name: envoy.filters.http.jwt_authn\n                  ";
    let filters = "http_filters:\n                  ";
    let behind = |file: String| format!("{file}                  {jwt}\n");
    let printed = changed(&plugin, behind);
    has(&printed, "put `jwt_authn` before this filter");
    let says = "warning: `rules.gateway.rules[0].checks[0].key[0].jwt`";
    has(&printed, says);
    let before = |file| behind(file).replacen(filters, &format!("{filters}{jwt}"), 1);
    lacks(&changed(&plugin, before), "jwt_authn");
    let by_header = plugin.replace(key, "{ header: key }");
    lacks(&changed(&by_header, behind), "jwt_authn");
    let none = changed(&plugin, |file| file);
    has(&none, "(none has one)");
    // Newcomers' finding 10: a payload that no provider writes.
    let providers = "typed_config: { providers: { one: { payload_in_metadata: PAYLOAD } } }";
    let configured = |payload: &str| {
        let providers = providers.replace("PAYLOAD", payload);
        let indent = jwt.rsplit('\n').next().unwrap();
        let jwt = format!("{jwt}  {providers}\n{indent}");
        changed(&plugin, |file| {
            behind(file).replacen(filters, &format!("{filters}{jwt}"), 1)
        })
    };
    lacks(&configured("p"), "jwt_authn");
    let says = "has `payload_in_metadata: p` (there is: `q`)";
    has(&configured("q"), says);
}

#[test]
fn an_address_in_place_of_a_key_must_not_be_forged_either() {
    let plugin = GOOD.replacen("when_missing: deny", "when_missing: { address: {} }", 1);
    let says = "warning: `rules.gateway.rules[0].checks[0].when_missing.address`: without `use_remote_address: true`";
    has(
        &around("use_remote_address: true", "codec_type: AUTO", &plugin),
        says,
    );
    lacks(&changed(&plugin, |file| file), "use_remote_address");
}

#[test]
fn a_route_that_changes_paths_is_found_if_a_rule_matches_the_new_ones_alone() {
    let of = |path: &str| GOOD.replace("{ path_prefix: /search }", path);
    let changed = of("{ path_prefix: /new/search }");
    let route = "route_config: { virtual_hosts: [{ routes: [{ match: { prefix: /old/ }, route: { prefix_rewrite: /new/ } }] }] }";
    let with_route = format!("request_timeout: 30s\n                {route}");
    let printed = around("request_timeout: 30s", &with_route, &changed);
    let says = "`rules.gateway.rules[0].match`: a route has `prefix_rewrite: /new/`";
    has(&printed, says);
    let redirect = with_route.replace(
        "route: { prefix_rewrite: /new/ }",
        "redirect: { prefix_rewrite: /new/ }",
    );
    lacks(
        &around("request_timeout: 30s", &redirect, &changed),
        "prefix_rewrite",
    );
    has(
        &around(
            "request_timeout: 30s",
            &with_route,
            &of("{ path_prefix: /new }"),
        ),
        says,
    );
    for both in [
        "{ path_prefix: /search }",
        "{ any: [{ path_prefix: /old }, { path_prefix: /new }] }",
        "{ path_prefix: / }",
    ] {
        let printed = around("request_timeout: 30s", &with_route, &of(both));
        lacks(&printed, "prefix_rewrite");
    }
    let deeper = with_route.replace("prefix: /old/", "prefix: /new/v1/");
    let printed = around(
        "request_timeout: 30s",
        &deeper,
        &of("{ path_prefix: /new/v1 }"),
    );
    lacks(&printed, "prefix_rewrite");
}

#[test]
fn consumers_of_another_pepper_and_without_keys_are_found() {
    let limits =
        "limits: { partner: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }\n";
    let consumers = "consumers: { partner: { pepper: DIGEST, keys: {}, limits: { acme: partner, default: partner } } }\n";
    let rules = "rules: { default: { rules: [{ name: r, checks: [{ limit: partner, key: [{ header: k }], consumers: true, \
                 when_missing: { address: {} } }], when_unavailable: deny }] } }\n";
    let plugin = "sidecar: { cluster: sluicegate }\nversion: 2\npepper: a-long-random-text\n";
    let digest = sluicegate_rules::Hasher::new("a-long-random-text").pepper_digest();
    for (digest, found) in [(digest.as_str(), false), ("0123456789ab", true)] {
        let policy =
            format!("{limits}{consumers}{rules}").replace("DIGEST", &format!("\"{digest}\""));
        let (status, printed) = run_with(&["check-config"], Some(&policy), Some(&envoy(plugin)));
        has(
            &printed,
            "policy.yaml:2: warning: consumers `partner`: `acme` has a limit and no key",
        );
        let says = "error: `pepper`: the policy's consumers have keys that were hashed with another pepper";
        assert_eq!(
            (printed.contains(says), status == 64),
            (found, found),
            "{printed}"
        );
        // Which one the environment has is not known.
        let plugin = plugin.replace("pepper: a-long-random-text", "pepper_env: SALT");
        let (_, printed) = run_with(&["check-config"], Some(&policy), Some(&envoy(&plugin)));
        lacks(&printed, says);
    }
}

/// Newcomers' finding 9.
#[test]
fn a_filter_before_cors_is_found() {
    let cors = "- name: envoy.filters.http.cors\n                  ";
    let filters = "http_filters:\n                  ";
    let behind = format!("{}                  {cors}\n", good());
    has(&checked(&behind), "put `cors` before this filter");
    let before = good().replacen(filters, &format!("{filters}{cors}"), 1);
    lacks(&checked(&before), "cors");
}

#[test]
fn a_cluster_that_the_file_lacks_may_come_from_a_control_plane() {
    let plugin = GOOD.replace("cluster: sluicegate", "cluster: elsewhere");
    let says = "error: `sidecar.cluster`: nothing in these files provides a cluster `elsewhere`";
    has(&changed(&plugin, |file| file), says);
    let typo = plugin.replace("elsewhere", "sluicegaet");
    has(&changed(&typo, |file| file), "did you mean `sluicegate`?");
    let dynamic = "dynamic_resources: { cds_config: { ads: {} } }\nstatic_resources:";
    let printed = around("static_resources:", dynamic, &plugin);
    has_all(&printed, "warning: `sidecar.cluster`, cds_config");
}

/// A filter of this kind in one line of a list of filters.
fn filter(kind: &str, configuration: &str) -> String {
    let more = if configuration.is_empty() { "" } else { ", " };
    format!(
        "- {{ name: f, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.{kind}.v3.X{more}{configuration} }} }}\n                  "
    )
}

#[test]
fn metadata_that_no_filter_writes_in_time_is_found_and_usage_that_a_client_can_tell() {
    let cost = "cost: { reserve: { metadata: { namespace: request, name: max } }, settle: { from: { metadata: { namespace: usage, name: total } } } }";
    let settled = GOOD.replacen("cost: 5", cost, 1);
    let writes = |namespace: &str, key: &str| {
        format!(
            "rules: [{{ selectors: [{{ key: any }}], on_present: {{ metadata_namespace: {namespace}, key: {key} }} }}]"
        )
    };
    let (max, total) = (writes("request", "max"), writes("usage", "total"));
    let json = filter(
        "json_to_metadata",
        &format!("request_rules: {{ {max} }}, response_rules: {{ {total} }}"),
    );
    let usage = filter("sse_to_metadata", &format!("response_rules: {{ {total} }}"));
    let forged = filter("json_to_metadata", &format!("request_rules: {{ {total} }}"));
    let other = filter(
        "json_to_metadata",
        &format!("request_rules: {{ {} }}", writes("usage", "other")),
    );
    let header = "request_rules: [{ header: x, on_header_present: { metadata_namespace: usage, key: total }, remove: true }]";
    let header = filter("header_to_metadata", header);
    let own = settled.replace(
        "namespace: usage",
        "namespace: envoy.filters.http.header_to_metadata",
    );
    let of_own = filter(
        "header_to_metadata",
        "request_rules: [{ header: x, on_header_present: { key: total } }]",
    );
    let script = filter(
        "lua",
        "default_source_code: { inline_string: \"h:streamInfo():dynamicMetadata():set('usage', 'total', 1) a['request']\" }",
    );
    let program = filter("golang", "library_id: x");
    let elsewhere =
        "- { name: f, config_discovery: { type_urls: [x] } }\n                  ".to_owned();
    let gateway = settled.replace("namespace: usage", "namespace: io.envoy.ai_gateway");
    let mcp = GOOD.replacen("match: { path_prefix: /search }", "match: { any: [{ metadata: [{ namespace: envoy.filters.http.mcp, name: method, equals: a }] }] }", 1);
    let none = String::new();
    let absent = [
        "into `usage`, so this is always absent",
        "into `request`, so this",
    ];
    for (rules, earlier, later, expected) in [
        (&settled, &none, &none, &absent[..]),
        (&settled, &json, &none, &[]),
        (&settled, &usage, &none, &absent[1..]),
        (&settled, &none, &usage, &absent[1..]),
        (
            &settled,
            &none,
            &json,
            &["`f` writes `request`, and comes after this filter"],
        ),
        (
            &settled,
            &(json.clone() + &forged),
            &none,
            &["`f` writes this from requests, so a client can tell its own usage"],
        ),
        (
            &settled,
            &json,
            &forged,
            &["a client can tell its own usage"],
        ),
        (&settled, &(json.clone() + &other), &none, &[]),
        (
            &settled,
            &(json.clone() + &header),
            &none,
            &["a client can tell its own usage"],
        ),
        (
            &own,
            &(json.clone() + &of_own),
            &none,
            &["a client can tell its own usage"],
        ),
        (&settled, &script, &none, &[]),
        (&settled, &program, &none, &[]),
        (&settled, &none, &elsewhere, &[]),
        (&gateway, &json, &none, &[]),
        (
            &mcp,
            &none,
            &none,
            &["into `envoy.filters.http.mcp`, so this"],
        ),
        (
            &mcp,
            &none,
            &filter("mcp", ""),
            &["comes after this filter"],
        ),
        (&mcp, &filter("mcp", ""), &none, &[]),
    ] {
        let filters = "http_filters:\n                  ";
        let printed = changed(rules, |file| {
            let file = file.replacen(filters, &format!("{filters}{earlier}"), 1);
            format!("{file}                  {later}\n")
        });
        for text in expected {
            has(&printed, text);
        }
        let found = [
            ": no other filter",
            "comes after this filter",
            "from requests",
        ];
        let found = found
            .map(|text| printed.matches(text).count())
            .iter()
            .sum::<usize>();
        assert_eq!(found, expected.len(), "{earlier}{later}: {printed}");
    }
}

#[test]
fn the_recipes_are_without_findings_about_metadata() {
    let page = std::fs::read_to_string("../docs/recipes.md").unwrap();
    let mut blocks = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .peekable();
    let mut count = 0;
    while let Some(policy) = blocks.next() {
        let filters = blocks
            .next_if(|next| next.starts_with("http_filters:"))
            .unwrap_or_default();
        let filters: String = filters
            .lines()
            .skip(1)
            .map(|line| format!("                {line}\n"))
            .collect();
        let (plugin, _) = pushed(GOOD);
        let plugin = plugin.replace("gateway", "default");
        let start = "http_filters:\n";
        let file = envoy(&plugin).replacen(start, &format!("{start}{filters}"), 1);
        let policy = format!("store: redis://redis:6379\n{policy}");
        let (_, printed) = run_with(&["check-config"], Some(&policy), Some(&file));
        has(&printed, "0 errors");
        for text in [
            "no other filter",
            "comes after this filter",
            "from requests",
        ] {
            lacks(&printed, text);
        }
        count += 1;
    }
    assert!(count >= 6, "{count}");
}
