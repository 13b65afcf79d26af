//! Envoy's files as Envoy reads them: in both spellings of fields, with durations that switch something off, beside what
//! excludes them and beside other filters, in one file or several.

use super::{
    ENVOY, GOOD, checked, envoy, good, has, indented, is_without_findings, lacks, pushed, run,
    run_with,
};
use crate::support::{printed, sluicegate};

/// The valid file with another text in place of one that it has.
fn with(from: &str, to: &str) -> String {
    let file = good();
    has(&file, from);
    file.replacen(from, to, 1)
}

/// The valid file with fields in lowerCamelCase, all or every other one.
fn camel(all: bool) -> String {
    let mut file = good();
    for (index, field) in [
        "static_resources",
        "filter_chains",
        "stats_config",
        "typed_config",
        "stats_tags",
        "common_http_protocol_options",
        "http_filters",
        "headers_with_underscores_action",
        "vm_config",
        "use_remote_address",
        "failure_policy",
        "request_timeout",
    ]
    .iter()
    .enumerate()
    {
        let mut parts = field.split('_');
        let first = parts.next().unwrap().to_owned();
        let name = parts.fold(first, |name, part| {
            let (head, tail) = part.split_at(1);
            name + &head.to_uppercase() + tail
        });
        if all || index % 2 == 0 {
            file = file.replace(&format!("{field}:"), &format!("{name}:"));
        }
    }
    file
}

/// Public finding 2.
#[test]
fn fields_in_both_spellings_are_read_also_mixed() {
    for all in [true, false] {
        let file = camel(all);
        is_without_findings(&run(&["check-config"], &file));
        let weak = file.replace("FAIL_RELOAD", "fail_open");
        has(
            &checked(&weak),
            "warning: `failure_policy`: all requests pass unmetered",
        );
        let weak = file.replace("Address: true", "Address: false");
        let weak = weak.replace("address: true", "address: false");
        has(&checked(&weak), "without `use_remote_address: true`");
    }
    // What is in the plugin's configuration has one spelling.
    let plugin = pushed(GOOD).0.replace("rule_sets", "ruleSets");
    has(&checked(&envoy(&plugin)), "ruleSets");
    let lenient = camel(true)
        .replace("FAIL_RELOAD", "fail_reload")
        .replace("Address: true", "Address: \"true\"");
    is_without_findings(&run(&["check-config"], &lenient));
}

/// Public finding 3.
#[test]
fn an_extension_that_finds_addresses_excludes_the_fields_that_do() {
    let extension =
        "original_ip_detection_extensions: [{ name: envoy.http.original_ip_detection.xff }]";
    let alone = with("use_remote_address: true", extension);
    is_without_findings(&run(&["check-config"], &alone));
    for field in ["use_remote_address: true", "xffNumTrustedHops: 1"] {
        let both = alone.replace(extension, &format!("{extension}\n                {field}"));
        let says = "error: Envoy refuses `use_remote_address` and `xff_num_trusted_hops`";
        has(&checked(&both), says);
    }
}

/// Public finding 5.
#[test]
fn a_duration_of_zero_is_no_deadline() {
    let endless = "route_config: { request_headers_to_remove: [ratelimit], virtual_hosts: [{ routes: [{ route: { idle_timeout: 0s } }] }] }";
    for (field, hangs) in [
        ("stream_idle_timeout: 0s", true),
        ("stream_idle_timeout: 0.000s", true),
        ("streamIdleTimeout: 0s", true),
        ("request_timeout: 0s", true),
        ("stream_idle_timeout: 60s", false),
        ("stream_idle_timeout: 0.5s", false),
        (
            "common_http_protocol_options: { headers_with_underscores_action: drop_header, max_stream_duration: 60s }",
            false,
        ),
    ] {
        let file = with("request_timeout: 30s", field);
        let file = match field.contains("common") {
            true => file.replacen("                common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }\n", "", 1),
            false => file,
        };
        let hanging =
            "warning: `request_timeout`: requests that wait when the filter's VM dies hang";
        assert_eq!(checked(&file).contains(hanging), hangs, "{field}");
        let file = file.replacen(
            "use_remote_address",
            &format!("{endless}\n                use_remote_address"),
            1,
        );
        let by_route = hangs || field.contains("idle");
        assert_eq!(checked(&file).contains(hanging), by_route, "{field}");
    }
}

/// The valid file with these filters before ours, one a line.
fn behind(filters: &str) -> String {
    let list = "http_filters:\n";
    with(list, &format!("{list}{}", indented(filters, 18)))
}

fn filter(name: &str, message: &str, fields: &str) -> String {
    format!(
        "- {{ name: some, typed_config: {{ '@type': type.googleapis.com/envoy.extensions.filters.http.{name}.v3.{message}{fields} }} }}"
    )
}

/// Public finding 4.
#[test]
fn filters_that_change_paths_or_headers_before_ours_are_found() {
    let transcoder = filter("grpc_json_transcoder", "GrpcJsonTranscoder", "");
    let path = "warning: `rules.gateway`: `some` before this filter gives requests another path";
    has(&checked(&behind(&transcoder)), path);
    let lua = |code: &str| {
        filter(
            "lua",
            "Lua",
            &format!(", default_source_code: {{ inline_string: '{code}' }}"),
        )
    };
    has(
        &checked(&behind(&lua("h:headers():replace(\":path\", \"/\")"))),
        path,
    );
    lacks(
        &checked(&behind(&lua("h:headers():get(\":path\")"))),
        "another path",
    );
    // The short form excludes preflights, which is no condition on the path.
    let policy = "limits: { per-address: { rate: 5/1s, by: address, on_failure: allow } }\n";
    let plugin = "version: 2\nsidecar: { cluster: sluicegate }\npepper: a-long-random-text\n";
    let list = "http_filters:\n";
    let file = envoy(plugin).replacen(list, &format!("{list}{}", indented(&transcoder, 18)), 1);
    let (_, told) = run_with(&["check-config"], Some(policy), Some(&file));
    lacks(&told, "another path");
    let long = "limits: { l: { algorithm: fixed_window, windows: [{ quota: 1, per: 1s }] } }\nrules: { default: { rules: [{ name: r, match: { path_prefix: /v1/ }, checks: [{ limit: l, key: [{ address: {} }] }], when_unavailable: deny }] } }\n";
    let (_, told) = run_with(&["check-config"], Some(long), Some(&file));
    has(
        &told,
        "warning: `rules.default`: `some` before this filter gives requests another path",
    );

    let removes = [
        filter(
            "header_mutation",
            "HeaderMutation",
            ", mutations: { requestMutations: [{ remove: X-Api-Key }] }",
        ),
        filter(
            "header_to_metadata",
            "Config",
            ", request_rules: [{ header: x-api-key, remove: true }]",
        ),
        filter(
            "jwt_authn",
            "JwtAuthentication",
            ", providers: { p: { from_headers: [{ name: x-api-key }] } }",
        ),
    ];
    for filter in removes {
        let says = "warning: `rules.gateway.rules[0].checks[0].key[0].header`: `some` before this filter removes `x-api-key`";
        has(&checked(&behind(&filter)), says);
        let kept = filter
            .replace("remove: true", "remove: false")
            .replace("remove: X", "remove: y");
        let kept = kept.replace("p: {", "p: { forward: true,");
        lacks(&checked(&behind(&kept)), "removes");
    }
}

/// Public finding 1; tests/chain/route_cleared.rs shows that Envoy does so.
#[test]
fn sets_chosen_by_a_route_that_may_have_been_cleared_are_refused() {
    let plugin = "version: 2\nsidecar: { cluster: sluicegate }\npepper: p\nrule_sets: { default: a, others: [b], by: route_name }\n";
    let list = "http_filters:\n";
    let check = |filters: &str, plugin: &str| {
        let file = envoy(plugin).replacen(list, &format!("{list}{}", indented(filters, 18)), 1);
        checked(&file)
    };
    let rbac = filter("rbac", "RBAC", "");
    let off = rbac.replace("name: some", "name: off, disabled: true");
    let inside = "- { name: in, typed_config: { '@type': type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher, extension_config: { name: x, typed_config: { '@type': type.googleapis.com/envoy.extensions.filters.http.NAME.v3.M } } } }";
    for (filter, refused) in [
        (filter("ext_authz", "ExtAuthz", ""), false),
        (filter("ext_authz", "ExtAuthz", ", clearRouteCache: true"), true),
        (filter("ext_authz", "ExtAuthz", ", clear_route_cache_headers: { exact: a }"), true),
        (filter("ext_proc", "ExternalProcessor", ""), true),
        (filter("ext_proc", "ExternalProcessor", ", route_cache_action: RETAIN"), false),
        (filter("ext_proc", "ExternalProcessor", ", disable_clear_route_cache: true"), false),
        (filter("jwt_authn", "JwtAuthentication", ", providers: { p: { forward: true } }"), false),
        (filter("jwt_authn", "JwtAuthentication", ", providers: { p: { clear_route_cache: true } }"), true),
        (filter("lua", "Lua", ""), true),
        (filter("lua", "Lua", "").replace("name: some", "name: off, disabled: true"), false),
        (filter("ext_authz", "ExtAuthz", ", clearRouteCache: true").replace("name: some", "disabled: true, name: off"), false),
        (filter("header_mutation", "HeaderMutation", ""), true),
        (filter("wasm", "Wasm", ""), true),
        (filter("dynamic_modules", "DynamicModuleFilter", ""), true),
        (filter("grpc_json_transcoder", "GrpcJsonTranscoder", ", match_incoming_request_route: true"), false),
        (filter("compressor", "Compressor", ""), false),
        (inside.replace("NAME", "lua"), true),
        ("- { name: e, config_discovery: { type_urls: [envoy.extensions.filters.http.lua.v3.Lua] } }".to_owned(), true),
        ("- { name: x, typed_config: { '@type': type.googleapis.com/xds.type.v3.TypedStruct, type_url: envoy.extensions.filters.http.lua.v3.Lua, value: {} } }".to_owned(), true),
    ] {
        let says = "error: `rule_sets.by`: ";
        let printed = check(&filter, plugin);
        assert_eq!(printed.contains(says), refused, "{filter}: {printed}");
        for (between, stale) in [(&rbac, false), (&off, refused), (&inside.replace("NAME", "rbac"), refused)] {
            let printed = check(&format!("{filter}\n{between}"), plugin);
            assert_eq!(printed.contains(says), stale, "{filter} {between}: {printed}");
        }
        // Nobody reads the route.
        lacks(&check(&filter, "version: 2\nsidecar: { cluster: sluicegate }\npepper: p\n"), "rule_sets.by");
    }
    let after = format!(
        "{}{}",
        envoy(plugin),
        indented(&filter("lua", "Lua", ""), 18)
    );
    has(
        &checked(&after),
        "warning: `rule_sets.by`: `some` after this filter may clear the route",
    );
    let ours = envoy(plugin);
    let (_, ours) = ours.split_once("http_filters:\n").unwrap();
    lacks(
        &checked(&format!("{}{ours}", envoy(plugin))),
        "rule_sets.by",
    );
}

/// Newcomers' finding 12.
#[test]
fn what_render_prints_and_a_file_lacks_is_found() {
    let stats = "stats_config: { stats_tags: [";
    has(
        &checked(&with(stats, "x: { stats_tags: [")),
        "warning: `stats_config.stats_tags` has no labels",
    );
    let routes = |fields: &str| {
        with(
            "request_timeout: 30s",
            &format!("request_timeout: 30s\n                route_config: {{ {fields} }}"),
        )
    };
    let strips = "requestHeadersToRemove: [RateLimit]";
    has(
        &checked(&routes("name: r")),
        "warning: `request_headers_to_remove` of the routes has no `ratelimit`",
    );
    is_without_findings(&run(&["check-config"], &routes(strips)));
    let cors = |fields: &str| {
        let host = "virtual_hosts: [{ typedPerFilterConfig: { envoy.filters.http.cors: { allow_origin_string_match: [{ exact: a }] FIELDS } } }]";
        let file = routes(&format!("{strips}, {}", host.replace("FIELDS", fields)));
        let list = "http_filters:\n";
        checked(&file.replacen(
            list,
            &format!(
                "{list}{}\n",
                indented("- name: envoy.filters.http.cors", 18)
            ),
            1,
        ))
    };
    has(
        &cors(""),
        "warning: no CORS policy of the routes exposes `retry-after`",
    );
    has(&cors(", expose_headers: x"), "warning: no CORS policy");
    lacks(&cors(", exposeHeaders: 'X, Retry-After'"), "CORS");
    has(
        &checked(&behind("- name: envoy.filters.http.router")),
        "error: `router` comes before this filter",
    );

    let folder = tempfile::tempdir().unwrap();
    let module = |path: &std::path::Path| {
        let code = format!(
            "runtime: envoy.wasm.runtime.v8, code: {{ local: {{ filename: {} }} }}",
            path.display()
        );
        checked(&with("runtime: envoy.wasm.runtime.v8", &code))
    };
    let file = folder.path().join("sluicegate.wasm");
    has(
        &module(&file),
        "file.yaml:15: warning: `filename`: the folder of ",
    );
    // Envoy runs elsewhere.
    lacks(
        &module(&folder.path().join("there/sluicegate.wasm")),
        "filename",
    );
    std::fs::write(&file, "").unwrap();
    lacks(&module(&file), "filename");
}

/// Public finding 11.
#[test]
fn files_given_apart_are_read_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = good();
    let (_, of_listener) = listener.split_once("    - filter_chains:\n").unwrap();
    listener = format!(
        "resources:\n    - '@type': type.googleapis.com/envoy.config.listener.v3.Listener\n      filter_chains:\n{of_listener}"
    );
    let listener = listener.replacen(
        "request_timeout: 30s",
        "request_timeout: 30s\n                rds: { route_config_name: public }",
        1,
    );
    let tags = ENVOY.lines().next().unwrap();
    let bootstrap = format!(
        "{tags}\ndynamic_resources: {{ lds_config: {{ path_config_source: {{ path: l }} }} }}\nstatic_resources: {{ clusters: [{{ name: backend }}] }}\n"
    );
    let clusters = |name: &str| {
        format!(
            "resources: [{{ '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: {name} }}]\n"
        )
    };
    let routes = "resources: [{ '@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: public, virtual_hosts: [{ routes: [{ match: { prefix: /old/ }, route: { prefixRewrite: /search/ } }] }] }]\n";
    let check = |files: &[&str]| {
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, pushed(GOOD).1).unwrap();
        let mut run = sluicegate(&["check-config", "--policy"]);
        run.arg(policy);
        for (index, text) in files.iter().enumerate() {
            let file = folder.path().join(format!("{index}.yaml"));
            std::fs::write(&file, text).unwrap();
            run.arg("--envoy").arg(file);
        }
        printed(&run.output().unwrap()).1
    };
    let says = "warning: `sidecar.cluster`: nothing in these files provides a cluster `sluicegate`";
    has(&check(&[&listener, &bootstrap, &clusters("other")]), says);
    has(&check(&[&listener, &bootstrap]), says);
    has(
        &check(&[&listener, &clusters("sluicegat")]),
        "did you mean `sluicegat`?",
    );
    lacks(&check(&[&listener]), "warning: ");
    lacks(
        &check(&[&listener, &bootstrap, &clusters("sluicegate")]),
        "warning: ",
    );
    lacks(
        &check(&[&listener, &bootstrap.replace("backend", "sluicegate")]),
        "warning: ",
    );
    let printed = check(&[routes, &listener, &bootstrap, &clusters("sluicegate")]);
    has(&printed, ": a route has `prefix_rewrite: /search/`");
    has(
        &printed,
        "warning: `request_headers_to_remove` of the routes",
    );
    let without = format!("{}dynamic_resources: {{}}\n", clusters("sluicegate"));
    has(
        &check(&[&listener, &without]),
        "`stats_config.stats_tags` has no labels",
    );
    lacks(
        &check(&[
            &listener,
            &bootstrap.replace("stats_tags", "x"),
            &clusters("sluicegate"),
        ]),
        "sidecar.cluster",
    );
}
