//! Tests of the import: what becomes of actions and descriptors, ratelimit's quirks, what differs and what is refused.

use super::*;
use crate::test_table::rows;

fn files(text: &str) -> Vec<File> {
    vec![("f.yaml".to_owned(), text.to_owned())]
}

fn imported(descriptors: &str, envoy: &str) -> Imported {
    let config = format!("domain: d\ndescriptors: {descriptors}\n");
    let imported = import(&files(&config), Some(&files(envoy)), false);
    imported.unwrap_or_else(|why| panic!("{why}: {config}"))
}

/// Descriptors, as key, value, units a minute and children: `a=b:5(c:1)`.
fn tree(text: &str) -> String {
    let mut yaml = String::from("[");
    for part in text.split_inclusive([' ', '(', ')']) {
        let (node, end) = part.split_at(part.trim_end_matches([' ', '(', ')']).len());
        if !node.is_empty() {
            let (name, quota) = node.rsplit_once(':').unwrap_or((node, ""));
            let (key, value) = name.split_once('=').unwrap_or((name, ""));
            yaml += &format!("{{ key: '{key}', value: '{value}'");
            if !quota.is_empty() {
                yaml += &format!(", rate_limit: {{ unit: minute, requests_per_unit: {quota} }}");
            }
            yaml += if end == "(" {
                ", descriptors: ["
            } else {
                " }, "
            };
        }
        if end == ")" {
            yaml += "] }, ";
        }
    }
    yaml + "]"
}

/// All parts of a cell, which have `&&` between them; those that begin with `!` must not be there.
#[track_caller]
fn has(text: &str, cell: &str) {
    for part in cell.split("&&").map(str::trim) {
        let part = part.replace("{ ", "{").replace(" }", "}");
        match part.strip_prefix('!') {
            Some(absent) => assert!(!text.contains(absent), "{absent:?} in {text}"),
            None => assert!(text.contains(&part), "no {part:?} in {text}"),
        }
    }
}

#[test]
fn each_action_has_a_key_or_a_condition() {
    let table = r#"
        remote_address: {} | remote_address:5 | key: address && rate: 5/1m && !match: && !when_missing && IPv6
        masked_remote_address: { v4_prefix_mask_len: 16 } | masked_remote_address:5 | key: { address: { ipv4_bits: 16, ipv6_bits: 128 } }
        request_headers: { header_name: X-Key, descriptor_key: k } | k:5 | key: { header: x-key } && when_missing: skip && different values
        request_headers: { header_name: x-key, descriptor_key: k } | k=gold:5 | match: { headers: [{ equals: gold, name: x-key }] } && key: everyone
        request_headers: { header_name: x-key, descriptor_key: k } | k=*:5 | match: { headers: [{ name: x-key, present: true }] } && key: { header: x-key }
        request_headers: { header_name: x-key, descriptor_key: k } | k=a*:5 | match: { headers: [{ name: x-key, prefix: a }] } && key: { header: x-key }
        request_headers: { header_name: x-key, descriptor_key: k } | k=a.*c:5 | regex: && a\..*c
        request_headers: { header_name: ':path', descriptor_key: PATH } | PATH=/cart:1 PATH:5 | match: /cart && key: everyone && match: { all: true, except: [/cart] } && key: path && a header `:path` has
        request_headers: { header_name: ':path', descriptor_key: PATH } | PATH=/:1 | path_regex: /
        request_headers: { header_name: ':path', descriptor_key: PATH } | PATH=/api*:1 | path_regex: && /api.* && key: path
        request_headers: { header_name: ':method', descriptor_key: m } | m=GET:5 | match: { method: GET } && includes HEAD
        request_headers: { header_name: ':authority', descriptor_key: h } | h:5 | key: host && no port and no capitals
        request_headers: { header_name: ':method', descriptor_key: m } | m:5 | key: method && count together && !no capitals
        request_headers: { header_name: x-forwarded-host, descriptor_key: h } | h:5 | key: { header: x-forwarded-host } && !no capitals
        request_headers: { header_name: Authorization, descriptor_key: a } | a:5 | key: { header: authorization } && are one key
        query_parameters: { query_parameter_name: q, descriptor_key: q } | q:5 | key: { query: q } && without case
        header_value_match: { descriptor_value: v, headers: [{ name: ':method', string_match: { safe_regex: { regex: P.* } } }] } | header_match=v:5 | { name: ":method", regex: P.* }
        request_headers: { header_name: X-Forwarded-For, descriptor_key: k } | k:5 | key: { address: {} } && !when_missing && begins with what clients write
        request_headers: { header_name: x-key, descriptor_key: k, skip_if_absent: true } | k:5 | key: { header: x-key } && !except
        generic_key: { descriptor_value: v } }, { request_headers: { header_name: a, descriptor_key: a, skip_if_absent: true } | generic_key=v:5(a:6) | rate: 6/1m && key: { header: a } && rate: 5/1m && match: { all: true, except: [{ headers: [{ name: a, present: true }] }] }
        metadata: { descriptor_key: k, default_value: none, metadata_key: { key: ns, path: [{ key: a }] } } | k=none:5 | match: [{ metadata: [{ equals: none, name: [a], namespace: ns }] }, { all: true, except: [{ metadata: [{ name: [a], namespace: ns, present: true }] }] }] && key: everyone
        query_parameters: { query_parameter_name: q, descriptor_key: k } | k:5 | key: { query: q }
        metadata: { descriptor_key: k, metadata_key: { key: ns, path: [{ key: a }, { key: b }] } } | k:5 | key: { metadata: { name: [a, b], namespace: ns } }
        generic_key: { descriptor_value: all } | generic_key=all:5 | key: everyone && !match:
        generic_key: { descriptor_key: k, descriptor_value: all } | k:5 | key: everyone
        source_cluster: {} | source_cluster=edge:5 | key: everyone
        header_value_match: { descriptor_value: v, headers: [{ name: ':path', prefix_match: /api }] } | header_match=v:5 | match: /api/ && ends at a segment
        header_value_match: { descriptor_value: v, headers: [{ name: x-a, string_match: { suffix: z } }] } | header_match=v:5 | regex: && .*z
        header_value_match: { descriptor_value: v, headers: [{ name: x-a, exact_match: b, invert_match: true }] } | header_match=v:5 | match: { except: [{ headers: [{ equals: b, name: x-a }] }], headers: [{ name: x-a, present: true }] }
        header_value_match: { descriptor_value: v, expect_match: false, headers: [{ name: x-a, present_match: true }] } | header_match=v:5 | match: { all: true, except: [{ headers: [{ name: x-a, present: true }] }] }
        query_parameter_value_match: { descriptor_value: v, query_parameters: [{ name: q, string_match: { exact: w } }] } | query_match=v:5 | match: { query: [{ equals: w, name: q }] }
    "#;
    for [action, descriptors, expected] in rows(table) {
        let envoy =
            format!("node: {{ cluster: edge }}\nrate_limits: [{{ actions: [{{ {action} }}] }}]\n");
        let imported = imported(&tree(&descriptors), &envoy);
        has(&imported.policy, &expected);
        assert_eq!(
            (&imported.mistake, imported.missing),
            (&None, 0),
            "{}",
            imported.policy
        );
    }
}

/// Headers `a` and `b` are sent as keys `a` and `b`; `c` is the constant that the row names.
#[test]
fn descriptors_are_found_as_ratelimit_finds_them() {
    let table = r"
        # Only the last entry's descriptor limits, and nothing below or above it.
        a | a(b:1) | !rate:
        a b | a:1(b:2) | rate: 2/1m && key: [{ header: a }, { header: b }] && !rate: 1/1m
        a b | a:1 | !rate:
        # There is no way back to the key alone.
        a b | a=x(b=y:1) a(b:2) | rate: 1/1m && rate: 2/1m && except: [{ headers: [{ equals: x, name: a }] }]
        # Key and value are one text.
        c=a_b,v | a=b_v:1 | rate: 1/1m
        c=a,b_v | a_b=v:1 | rate: 1/1m
        c=k,v | k_v:1 | rate: 1/1m
        # The exact one, then the first wildcard, then the key alone.
        c=k,foobar | k:1 k=*bar:2 k=foo*:3 | rate: 2/1m && !rate: 1/1m && !rate: 3/1m
        c=k,foobar | k=foo*:3 k=foobar:4 | rate: 4/1m && !rate: 3/1m
        c=k,foobar | k=o*:3 k:1 | rate: 1/1m
        c=k,ab | k=ab*b:3 | !rate:
        a | a=x*:1 a=xy:2 a:3 | match: { except: [{ headers: [{ equals: xy, name: a }] }], headers: [{ name: a, prefix: x }] }
        # 0 allows nothing.
        a | a=bad:0 | rate: 0 && equals: bad
    ";
    for [sent, descriptors, expected] in rows(table) {
        let action = |one: &str| match one.strip_prefix("c=").and_then(|one| one.split_once(',')) {
            Some((key, value)) => {
                format!("{{ generic_key: {{ descriptor_key: {key}, descriptor_value: {value} }} }}")
            }
            None => {
                format!("{{ request_headers: {{ header_name: {one}, descriptor_key: {one} }} }}")
            }
        };
        let actions: Vec<_> = sent.split(' ').map(action).collect();
        let envoy = format!("rate_limits: [{{ actions: [{}] }}]\n", actions.join(", "));
        has(&imported(&tree(&descriptors), &envoy).policy, &expected);
    }
}

#[test]
fn single_addresses_are_overrides() {
    let table = r"
        remote_address: {} | remote_address:5 remote_address=1.2.3.4:0 remote_address=1.2.3.5:9 | key: address && overrides: [{ blocked: true, key: '@address=1.2.3.4' }, { key: '@address=1.2.3.5', quota: 9 }] && 1 of 0
        masked_remote_address: { v4_prefix_mask_len: 8 } | masked_remote_address:5 masked_remote_address=10.0.0.0/8:0 | '@address=10.0.0.0' && 1 of 0
        request_headers: { header_name: x-forwarded-for, descriptor_key: k } | k:5 k=1.2.3.4:0 | no condition `address` equals '1.2.3.4' && !overrides && !send this && 1 of 1
        remote_address: {} | remote_address:5 remote_address=2001:db8::1:0 | no condition `address` equals '2001:db8::1' && !overrides && 1 of 1
        remote_address: {} }] }, { actions: [{ remote_address: {} }, { generic_key: { descriptor_value: v } | remote_address:5 remote_address=1.2.3.4:0 | overrides: && 1 of 0
        # A quota would be by the hour.
        remote_address: {} | remote_address:0 remote_address=1.2.3.4:9 | no condition `address` && 1 of 1
        # An override has one key.
        request_headers: { header_name: a, descriptor_key: a } }, { remote_address: {} | a(remote_address:5 remote_address=1.2.3.4:0) | f.yaml:2: the policy has no condition `address` equals '1.2.3.4' && !send this && !overrides && 1 of 1
        remote_address: {} }, { generic_key: { descriptor_value: v } | remote_address:7(generic_key:5) remote_address=1.2.3.4:0 | no condition `address` equals '1.2.3.4' && 1 of 1
    ";
    for [action, descriptors, expected] in rows(table) {
        let envoy = format!("rate_limits: [{{ actions: [{{ {action} }}] }}]\n");
        let imported = imported(&tree(&descriptors), &envoy);
        let text = imported.policy.replace('"', "'");
        let (limits, missing) = (imported.limits, imported.missing);
        has(&format!("{text}{limits} of {missing}"), &expected);
    }
    let rates = |unit: &str, more: &str| {
        let others = format!("rate_limit: {{ unit: {unit}, requests_per_unit: 9 }}{more}");
        let address = "[{ key: remote_address, rate_limit: { unit: day, requests_per_unit: 7 } }, { key: remote_address, value: 1.2.3.4, ";
        let envoy = "rate_limits: [{ actions: [{ remote_address: {} }] }]\n";
        imported(&format!("{address}{others} }}]"), envoy).policy
    };
    has(&rates("day", ""), "quota: 9");
    has(&rates("hour", ""), "!overrides && no condition `address`");
    let free = "[{ key: a, descriptors: [{ key: remote_address, rate_limit: { unit: day, requests_per_unit: 7 } }, { key: remote_address, value: 1.2.3.4, rate_limit: { unlimited: true } }] }]";
    let envoy = "rate_limits: [{ actions: [{ request_headers: { header_name: a, descriptor_key: a } }, { remote_address: {} }] }]\n";
    let told = "f.yaml:2: the policy has no condition `address` equals \"1.2.3.4\" && key: [{ header: a }, address]";
    has(&imported(free, envoy).policy, told);
    has(&rates("day", ", shadow_mode: true"), "!overrides");
    has(&rates("day, replaces: [{ name: x }]", ""), "!overrides");
}

#[test]
fn descriptors_have_fields_that_matter_and_fields_that_do_not() {
    let header = "rate_limits: [{ actions: [{ request_headers: { header_name: a, descriptor_key: a } }], hits_addend: { number: 3 }, disable_key: x, limit: {}, apply_on_stream_done: false }]";
    let table = r"
        rate_limit: { unit: day, requests_per_unit: 4294967295 } | rate: 2147483647/24h && at most 2147483647 && (`disable_key`) && (`limit`)
        rate_limit: { unit: Hour, requests_per_unit: 7, name: 'seven' }, detailed_metric: true, metadata: { x: 1 } | a: && rate: 7/1h && Envoy ignores `hits_addend`
        rate_limit: { unit: second, requests_per_unit: 7 }, shadow_mode: true | rate: 7/1s && shadow: true # shadow_mode
        rate_limit: { unit: week, requests_per_unit: 20000 } | rate: 20000/7d && algorithm: sliding_window && a sixtieth
        rate_limit: { unit: month, requests_per_unit: 7 } | rate: 7/30d && A month has 30 days
        rate_limit: { unit: day } | rate: 0
        value: 404, rate_limit: { unit: day, requests_per_unit: 7 } | equals: \q404\q && rate: 7/24h
        value: 'x*', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 7 } | prefix: x && key: everyone
        value: 'x*', rate_limit: { unit: day, requests_per_unit: 7 }, quota_mode: true | must be used up. (f.yaml:2)
        value: y, rate_limit: { unlimited: true } | !rate: && !equals
        rate_limit: { unit: day, requests_per_unit: 7, replaces: [{ name: other }] } | applies beside it
        rate_limit: { unlimited: true, replaces: [{ name: other }] } | not imported: && f.yaml:2: `unlimited` with `replaces` && !send this
    ";
    for [fields, expected] in rows(table) {
        let imported = imported(&format!("[{{ key: a, {fields} }}]"), header);
        has(&imported.policy, &expected.replace("\\q", "\""));
    }
    let unlimited = "[{ key: a, value: free, rate_limit: { unlimited: true } }, { key: a, rate_limit: { unit: day, requests_per_unit: 7 } }]";
    let policy = imported(unlimited, header).policy;
    has(
        &policy,
        "except: [{ headers: [{ equals: free, name: a }] }] && rate: 7/24h",
    );
}

#[test]
fn anchors_and_merges_are_read() {
    let config = "[{ key: &k 007, rate_limit: &r { unit: day, requests_per_unit: 5 } }, { key: b, value: *k, rate_limit: { <<: *r, requests_per_unit: 7 } }]";
    let action = "{ generic_key: &g { descriptor_key: '007', descriptor_value: v } }, { generic_key: { <<: *g, descriptor_key: b, descriptor_value: '007' } }";
    let actions = action.replace("}, {", "}] }, { actions: [{");
    let envoy = format!("rate_limits: [{{ actions: [{actions}] }}]\n");
    let policy = imported(config, &envoy).policy;
    has(&policy, "b_007: # f.yaml:2 && rate: 5/24h && rate: 7/24h");
}

#[test]
fn keys_and_values_of_descriptors_are_the_texts_of_the_file() {
    for value in ["007", "0x10", "1_000", "+49", "True", "5"] {
        let rate = "rate_limit: { unit: minute, requests_per_unit: 5 }";
        let config = format!("[{{ key: é, {rate} }}, {{ key: k, value: {value}, {rate} }}]");
        let action =
            format!("{{ generic_key: {{ descriptor_key: k, descriptor_value: '{value}' }} }}");
        let envoy = format!(
            "http_filters:\n- name: envoy.filters.http.ratelimit\n  typed_config: {{ domain: d }}\n\
             virtual_hosts: [{{ rate_limits: [{{ actions: [{action}] }}] }}]\n"
        );
        assert_eq!(imported(&config, &envoy).limits, 1, "{value}");
    }
}

/// `L`: `rate_limits` that meet the descriptor; `M`: others.
#[test]
fn requests_are_limited_where_envoy_asks() {
    let table = r"
        { routes: [{ match: { prefix: / }, route: { L } }] } | !match: && key: everyone
        { routes: [{ match: { prefix: /api }, route: { L } }] } | match: /api/ && ends at a segment: && f.yaml:5
        { routes: [{ match: { path: /a }, route: {} }, { match: { prefix: /a/ }, route: { L } }] } | match: { except: [/a], path: /a/ }
        { routes: [{ match: { prefix: /a/ }, route: {} }, { match: { prefix: /b/ }, route: { L } }] } | match: /b/
        { routes: [{ match: { prefix: /a/ }, route: {} }, { match: { prefix: /a/b/ }, route: { L } }] } | match: { except: [/a/], path: /a/b/ }
        { routes: [{ match: { safe_regex: { regex: '/v[0-9]+' }, headers: [{ name: x, exact_match: y }] }, route: { L } }] } | path_regex: && /v[0-9]+ && equals: 'y'
        { L, routes: [{ match: { prefix: /a/ }, route: {} }, { match: { prefix: / }, redirect: {} }] } | match: { all: true, except: [{ all: true, except: [/a/] }] }
        { routes: [{ match: { prefix: /query/ }, route: { rate_limits: [{ actions: [{ generic_key: { descriptor_value: v } }] }, { actions: [{ generic_key: { descriptor_value: v } }] }] } }] } | match: /query/ && twice in a list && !without case
        { routes: [{ match: { prefix: /a/ }, route: { L } }, { match: { prefix: /b/ }, route: { L } }] } | match: [/a/ && !twice in a list
        { L, routes: [{ match: { prefix: /a/ }, route: {} }] } | match no route, which && (f.yaml:5) && ends at a segment
        { L, routes: [{ match: { prefix: / }, route: {} }] } | !ends at a segment
        { routes: [{ match: { path_separated_prefix: /a }, route: { L } }] } | match: /a/ && !ends at a segment
        { L, routes: [{ match: { prefix: /a/ }, route: { M } }, { match: { prefix: / }, route: {} }] } | match: { all: true, except: [/a/] }
        { L, routes: [{ match: { path: /a/b }, route: { M } }, { match: { prefix: /a/ }, route: { M } }, { match: { prefix: / }, route: {} }] } | except: [/a/b, /a/] }
        { L, routes: [{ match: { path: /a }, route: { M } }, { match: { prefix: / }, route: { M } }] } | 0 limits
        { L, routes: [{ match: { prefix: /a/ }, route: { M, include_vh_rate_limits: true } }, { match: { prefix: / }, route: {} }] } | !match: && key: everyone
        { domains: [a.example.com, 'b.example.com:80'], L } | match: { host: [a.example.com, b.example.com] }
        { domains: ['*'], L }, { domains: ['*.b.c', x.b.c] } | match: { all: true, except: [{ host: [ && .b.c && x.b.c
        { domains: [x.b.c] }, { domains: ['*.b.c'], L } | match: { except: [{ host: [x.b.c] }], host: [
        { routes: [{ match: { prefix: /a/ }, route: { L } }, { match: { prefix: /b/ }, route: { L } }] } | match: [/a/, /b/] && 1 limits
        { routes: [{ match: { prefix: /, grpc: {} }, route: { L } }] } | f.yaml:5: && own limits are left out && 0 limits
        { routes: [{ match: { path: /a, runtime_fraction: {} }, route: { M } }, { match: { prefix: / }, route: { L } }] } | own limits are left out && key: everyone && !match:
        { routes: [{ match: { path: '/v1/users:batch' }, route: { L } }] } | match: /v1/users:batch
        { domains: [foo.*, b.com], L } | match: { headers: [{ name: ':authority', regex: '(?i)(foo\\..+ && b\\.com)(:[0-9]+)?' }] }
        { domains: ['[::1]:80'], L } | match: { host: ['[::1]'] }
        { domains: [a.com, 'a.com:80', 'a.com:*', b.com], L } | match: { host: [a.com, b.com] } && A host matches with every port && matching` or `strip_any_host_port`. (f.yaml:5)
        { domains: ['*'], L } | !every port
        { domains: [foo.*], L }, { domains: [foo.com, '*.net', '*'] } | except: [{ host: [foo.com, '*.net'] }]
        { domains: ['*'], L }, { domains: [foo.*] } | match: { all: true, except: [{ headers: [
    ";
    let limits = "rate_limits: [{ actions: [{ generic_key: { descriptor_value: v } }] }]";
    let others = "rate_limits: [{ actions: [{ remote_address: {} }] }]";
    for [hosts, expected] in rows(table) {
        let hosts = hosts.replace('L', limits).replace('M', others);
        let filter = "name: envoy.filters.http.ratelimit\n  typed_config: { domain: d }";
        let envoy =
            format!("http_filters:\n- {filter}\nroute_config:\n  virtual_hosts: [{hosts}]\n");
        let imported = imported(&tree("generic_key=v:5"), &envoy);
        let text = format!(
            "{} {} limits",
            imported.policy.replace('"', "'"),
            imported.limits
        );
        has(&text, &expected);
    }
}

/// `$L`: actions that meet the descriptor; `$H`: the same, with this `hits_addend`.
#[test]
fn hits_addend_of_the_filters_settings_is_a_cost() {
    let table = r#"
        $H{ number: 4 } | cost: 4 && !`hits_addend`
        $H{ number: '4' } | cost: 4
        $H{ format: '%REQ(X-Cost)%' } | cost: { header: x-cost, max: 5, trusted: true } && match: { headers: [{ name: x-cost, present: true }] } && whole quota. && can set the header. (f.yaml:2)
        $H{ format: '%REQ(x-cost?:path)%' } | f.yaml:5: this `hits_addend` has no counterpart && 0 limits
        $H{ format: '%REQ()%' } | f.yaml:5: this `hits_addend` has no counterpart && 0 limits
        $H{ format: '%BYTES_RECEIVED%' } | f.yaml:5: this `hits_addend` has no counterpart && 0 limits
        $H{ number: 4, is_negative_hits: true } | f.yaml:5: this `hits_addend` has no counterpart && 0 limits
        $H{ number: 6 } | not imported: && f.yaml:2: `limits.generic_key_v && 0 limits
        $L }, { actions: [{ generic_key: { descriptor_value: v } }], hits_addend: { number: 2 } | generic_key_v: && generic_key_v-2: && cost: 2 && from several sources
    "#;
    let actions = "actions: [{ generic_key: { descriptor_value: v } }]";
    for [limit, expected] in rows(table) {
        let limit = limit.replace("$H", &format!("{actions}, hits_addend: "));
        let limit = limit.replace("$L", actions);
        let settings =
            format!("typed_per_filter_config: {{ rl: {{ rate_limits: [{{ {limit} }}] }} }}");
        let filter = "name: rl, typed_config: { '@type': http.ratelimit, domain: d }";
        let envoy = format!(
            "http_filters:\n- {{ {filter} }}\nroute_config:\n  virtual_hosts:\n  - {{ {settings} }}\n"
        );
        let imported = imported(&tree("generic_key=v:5"), &envoy);
        has(
            &format!("{} {} limits", imported.policy, imported.limits),
            &expected,
        );
    }
}

/// `$L`: `rate_limits` that meet the descriptor; `$T`: the field with the filter's settings.
#[test]
fn routes_and_what_they_are_in_have_settings_of_the_filter() {
    let table = r"
        rl | { $L, routes: [{ match: { prefix: /a/ }, route: {}, $T: { rl: { disabled: true } } }, { match: { prefix: / }, route: {} }] } | match: { all: true, except: [/a/] }
        rl | { $L, routes: [{ match: { prefix: / }, route: {} }], $T: { rl: { disabled: true } } } | 0 limits
        rl | { $L, routes: [{ match: { prefix: /a/ }, route: {}, $T: { other: { disabled: true } } }] } | !match:
        rl | { routes: [{ match: { prefix: /a/ }, route: {}, $T: { rl: { $L } } }] } | match: /a/
        rl | { routes: [{ match: { prefix: /a/ }, route: {}, $T: { rl: { config: { $L } } } }] } | match: /a/
        rl | { routes: [{ match: { prefix: /a/ }, redirect: {}, $T: { rl: { $L } } }] } | 0 limits
        rl | { routes: [{ match: { prefix: /a/ }, route: {} }, { match: { prefix: /b/ }, route: {}, $T: { rl: {} } }], $T: { rl: { $L } } } | match: /a/
        rl | { $T: { rl: { $L } } } | !match:
        # Its limits stand for those of the route and the virtual host.
        rl | { $L, routes: [{ match: { prefix: /a/ }, route: { $L }, $T: { rl: { rate_limits: [{ actions: [{ remote_address: {} }] }] } } }, { match: { prefix: / }, route: {} }] } | match: { all: true, except: [/a/] }
        rl | { $L, routes: [{ match: { prefix: / }, route: { rate_limits: [{ actions: [{ remote_address: {} }] }] }, $T: { rl: { vh_rate_limits: INCLUDE } } }] } | !match:
        rl | { $L, routes: [{ match: { prefix: /a/ }, route: {}, $T: { rl: { vh_rate_limits: IGNORE } } }, { match: { prefix: / }, route: {} }] } | match: { all: true, except: [/a/] }
        rl | { $L, routes: [{ match: { prefix: / }, route: {}, $T: { rl: { domain: other } } }] } | 0 limits
        rl | { $L, routes: [{ match: { prefix: / }, route: { weighted_clusters: { clusters: [{ $T: { rl: {} } }] } } }] } | f.yaml:5: the filter's settings for a single cluster
        rl, disabled: true | { $L, routes: [{ match: { prefix: / }, route: {} }] } | 0 limits
        rl, disabled: true | { $L, routes: [{ match: { prefix: /a/ }, route: {}, $T: { rl: {} } }] } | match: /a/
    ";
    let limits = "rate_limits: [{ actions: [{ generic_key: { descriptor_value: v } }] }]";
    for [filter, hosts, expected] in rows(table) {
        let hosts = hosts
            .replace("$L", limits)
            .replace("$T", "typed_per_filter_config");
        let config = "typed_config: { '@type': http.ratelimit, domain: d }";
        let envoy = format!(
            "http_filters:\n- {{ name: {filter}, {config} }}\nroute_config:\n  virtual_hosts:\n  - {hosts}\n"
        );
        let imported = imported(&tree("generic_key=v:5"), &envoy);
        has(
            &format!("{} {} limits", imported.policy, imported.limits),
            &expected,
        );
    }
}

#[test]
fn routes_of_a_connection_manager_without_the_filter_ask_nobody() {
    let manager = |filter: &str, path: &str| {
        let action = "actions: [{ generic_key: { descriptor_value: v } }]";
        let route = format!(
            "{{ match: {{ prefix: {path} }}, route: {{ rate_limits: [{{ {action} }}] }} }}"
        );
        format!(
            "- {{ http_filters: [{{ {filter} }}], virtual_hosts: [{{ routes: [{route}] }}] }}\n"
        )
    };
    let ours = "name: envoy.filters.http.ratelimit, typed_config: { domain: d }";
    let router = "name: envoy.filters.http.router";
    let envoy = manager(ours, "/a/") + &manager(router, "/b/");
    let policy = imported(&tree("generic_key=v:5"), &envoy).policy;
    has(&policy, "match: /a/");
    // Without a filter in any file, one may be in a patch.
    let policy = imported(&tree("generic_key=v:5"), &manager(router, "/b/")).policy;
    has(
        &policy,
        "match: /b/ && Envoy files have no ratelimit filter",
    );
}

#[test]
fn filters_say_the_domain_the_stage_and_what_happens_without_a_verdict() {
    let limits = "virtual_hosts: [{ rate_limits: [{ actions: [{ generic_key: { descriptor_value: v } }], stage: 1 }] }]";
    let table = r"
        domain: d, stage: 1 | key: everyone && !on_failure && !reply
        domain: d, stage: 1, failureModeDeny: true | on_failure: deny
        domain: d, stage: 1, enable_x_ratelimit_headers: DRAFT_VERSION_03 | f.yaml:1: the filter's `enable_x_ratelimit_headers`
        domain: d, stage: 1, rate_limited_status: { code: 503 }, timeout: 1s | f.yaml:1: the filter's `rate_limited_status` && !`timeout`
        domain: d | no `rate_limits` that were imported
        domain: e, stage: 1 | no `rate_limits` that were imported && domain `e`: a filter asks for it
        stage: 1 | f.yaml:1: && domain
    ";
    for [filter, expected] in rows(table) {
        let envoy = format!(
            "http_filters: [{{ name: envoy.filters.http.ratelimit, typed_config: {{ {filter} }} }}]\n{limits}\n"
        );
        has(
            &imported(&tree("generic_key=v:5"), &envoy).policy,
            &expected,
        );
    }
    let two = "domain: e\ndescriptors: [{ key: generic_key, rate_limit: { unit: day, requests_per_unit: 9 } }]\n---\ndomain: d\n";
    let envoy = format!(
        "http_filters: [{{ name: envoy.filters.http.ratelimit, typed_config: {{ domain: e, stage: 1 }} }}]\n{limits}\n"
    );
    let imported = import(&files(two), Some(&files(&envoy)), true).unwrap();
    has(&imported.policy, "generic_key: # f.yaml:2 && shadow: true");
}

#[test]
fn what_has_no_counterpart_is_named_with_its_place() {
    let table = r"
        { actions: [{ extension: {} }] } | f.yaml:2: && extension
        { actions: [{ destination_cluster: {} }] } | f.yaml:2: `destination_cluster`: the Envoy file does not say
        { actions: [{ metadata: { descriptor_key: a, source: ROUTE_ENTRY } }] } | f.yaml:2: `source`
        { actions: [{ generic_key: { descriptor_value: v } }], apply_on_stream_done: true } | f.yaml:2: && apply_on_stream_done
        { actions: [{ header_value_match: { descriptor_value: v, headers: [{ name: a, range_match: {} }] } }] } | f.yaml:2: && range_match
        { actions: [{ remote_address: {} }] } | f.yaml:2: the policy has no condition `address` equals
    ";
    for [limit, why] in rows(table) {
        let imported = imported(
            "[{ key: remote_address, value: 10.0.0.1, rate_limit: { unit: day } }]",
            &format!("rate_limits:\n- {limit}\n"),
        );
        has(
            &imported.policy,
            &format!("What was not imported: && {why}"),
        );
        assert!(imported.missing > 0 && imported.limits == 0);
    }
}

#[test]
fn what_would_be_refused_is_left_out() {
    let matched = |regex: &str| {
        format!(
            "{{ actions: [{{ header_value_match: {{ descriptor_value: {regex}, headers: [{{ name: a, safe_regex_match: {{ regex: {regex} }} }}] }} }}] }}"
        )
    };
    let envoy = format!("rate_limits: [{}, {}]\n", matched("x"), matched("'['"));
    let (config, null) = ("header_match=x:5 header_match", "null:1");
    let left = imported(&tree(&format!("{config}=[:5")), &envoy);
    has(
        &left.policy,
        "header_match_x: && f.yaml:2: `limits.header_match_.match && regex",
    );
    assert_eq!((left.limits, left.missing, left.mistake), (1, 1, None));

    let values: Vec<_> = (0..257).map(|value| format!("k={value}:1")).collect();
    let key = "{ actions: [{ request_headers: { header_name: k, descriptor_key: k } }] }";
    let name = "{ actions: [{ generic_key: { descriptor_key: 'null', descriptor_value: v } }] }";
    let envoy = format!("rate_limits: [{key}, {name}]\n");
    let left = imported(&tree(&format!("{null} {}", values.join(" "))), &envoy);
    has(&left.policy, "\"null\": # && no room for more");
    assert_eq!((left.limits, left.missing, left.mistake), (256, 1, None));
}

#[test]
fn without_envoys_file_the_limits_are_for_no_request() {
    let config = format!(
        "kind: ConfigMap\ndata:\n  config.yaml: |\n    domain: d\n    descriptors:\n      - {{ key: a, descriptors: {} }}\n",
        tree("b:5 c:6")
    );
    let imported = import(&files(&config), None, false).unwrap();
    has(
        &imported.policy,
        "a.b: # f.yaml:6 && a.c: && match: none && rate: 5/1m && `--envoy FILE`",
    );
    assert_eq!((imported.mistake, imported.limits), (None, 2));
}

#[test]
fn what_ratelimit_refuses_is_refused() {
    let table = r"
        descriptors: [] | no `domain`
        domain: d\ndescriptors: [{ value: x }] | f.yaml:2: && key
        domain: d\ndescriptors: [{ key: '' }] | f.yaml:2: `key` is empty
        domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - key: b\n  - key: b | f.yaml:6: this descriptor occurs twice
        domain: d\ndescriptors: [{ key: a, value: x, share_threshold: true }] | f.yaml:2: `share_threshold`
        domain: d\ndescriptors: [{ key: a, rate_limit: { unit: fortnight, requests_per_unit: 1 } }] | f.yaml:2: `unit`
        domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, unlimited: true } }] | f.yaml:2: `unit`
        domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1.5 } }] | f.yaml:2: && requests_per_unit
        domain: d\ndescriptors: [{ key: a, ratelimit: {} }] | f.yaml:2: && ratelimit
        domain: d\n---\ndomain: d | f.yaml:3: another file
        domain: [ | f.yaml is not YAML
    ";
    for [config, why] in rows(table) {
        has(&import(&files(&config), None, false).unwrap_err(), &why);
    }
}

/// The page's example is what the command prints.
#[test]
fn the_page_shows_what_is_printed() {
    let page = include_str!("../../../docs/moving-envoy-ratelimit.md");
    let blocks: Vec<_> = page.split("```yaml\n").skip(1).collect();
    let block = |number: usize| blocks[number].split("```").next().unwrap().to_owned();
    let [config, envoy] = [("config.yaml", 0), ("envoy.yaml", 1)]
        .map(|(name, number)| vec![(name.to_owned(), block(number))]);
    let imported = import(&config, Some(&envoy), true).unwrap();
    assert!(imported.policy.ends_with(&block(2)), "{}", imported.policy);
}
