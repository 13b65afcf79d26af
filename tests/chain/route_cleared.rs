//! Rule sets that the route chooses, beside filters that make Envoy select the route again. The filter sees the route that
//! Envoy selected last: if another one has only cleared it, that is the route of before, and the client chose it.

use std::collections::BTreeMap;
use std::process::Command;
use std::slice;

use axum::Router;
use serde_json::{Value, json};
use sluicegate_tests::client::get_with;
use sluicegate_tests::envoy::{Envoy, LISTENER, MANAGER, at};
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::sidecar::{Sidecar, binary};
use sluicegate_tests::token::{jwt_authn, token};
use sluicegate_tests::upstream::serve;

use super::support::{filters, per_key, policy, pushed};

/// A filter of Envoy's.
fn filter(name: &str, message: &str, mut configuration: Value) -> Value {
    let of = "type.googleapis.com/envoy.extensions.filters.http";
    configuration["@type"] = json!(format!("{of}.{name}.v3.{message}"));
    json!({ "name": format!("envoy.filters.http.{name}"), "typed_config": configuration })
}

fn rbac() -> Value {
    filter("rbac", "RBAC", json!({}))
}

/// Overwrites the plan that a client asks for; this alone does not make Envoy select the route again.
fn free_plan() -> Value {
    let append = json!({ "header": { "key": "x-plan", "value": "free" }, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD" });
    let mutations = json!({ "request_mutations": [{ "append": append }] });
    filter(
        "header_mutation",
        "HeaderMutation",
        json!({ "mutations": mutations }),
    )
}

/// Filters that overwrite the plan and clear the route, by the name of the one that clears it.
fn clearing() -> Vec<(&'static str, Vec<Value>)> {
    let lua = "function envoy_on_request(handle) handle:headers():replace('x-plan', 'free') end";
    let mut jwt = jwt_authn();
    let provider = &mut jwt["typed_config"]["providers"]["issuer"];
    provider["claim_to_headers"] = json!([{ "header_name": "x-plan", "claim_name": "plan" }]);
    provider["clear_route_cache"] = json!(true);
    let loopback = json!([{ "ip_tag_name": "near", "ip_list": [{ "address_prefix": "127.0.0.0", "prefix_len": 8 }] }]);
    let state = json!({ "object_key": "k", "factory_key": "envoy.string",
        "format_string": { "text_format_source": { "inline_string": "v" } } });
    let state = json!({ "on_request_headers": [state], "clear_route_cache": true });
    let missing = json!({ "metadata_namespace": "n", "key": "k", "value": "v" });
    let rules = json!([{ "selectors": [{ "key": "a" }], "on_missing": missing, "on_error": missing, "on_present": missing }]);
    let body = json!({ "request_rules": { "rules": rules } });
    let service = json!({
        "server_uri": { "uri": "http://authz", "cluster": "authz", "timeout": "5s" },
        "authorization_response": { "allowed_upstream_headers": { "patterns": [{ "exact": "x-plan" }] } },
    });
    let authz = json!({ "http_service": service, "clear_route_cache": true });
    vec![
        ("ext_authz", vec![filter("ext_authz", "ExtAuthz", authz)]),
        (
            "lua",
            vec![filter(
                "lua",
                "Lua",
                json!({ "default_source_code": { "inline_string": lua } }),
            )],
        ),
        ("jwt_authn", vec![jwt]),
        (
            "ip_tagging",
            vec![
                free_plan(),
                filter(
                    "ip_tagging",
                    "IPTagging",
                    json!({ "request_type": "BOTH", "ip_tags": loopback }),
                ),
            ],
        ),
        (
            "set_filter_state",
            vec![free_plan(), filter("set_filter_state", "Config", state)],
        ),
        (
            "json_to_metadata",
            vec![
                free_plan(),
                filter("json_to_metadata", "JsonToMetadata", body),
            ],
        ),
    ]
}

/// Filters that ask Envoy for the route.
fn asking() -> Vec<Value> {
    let percentage = json!({ "default_value": { "numerator": 0 } });
    vec![
        rbac(),
        filter("cors", "Cors", json!({})),
        filter(
            "csrf",
            "CsrfPolicy",
            json!({ "filter_enabled": percentage }),
        ),
        filter("fault", "HTTPFault", json!({})),
    ]
}

/// An Envoy with a listener for each list of filters, which may have ours in it as `null`; the ports, by what they are for.
async fn envoy(
    sidecar: &Sidecar,
    lists: Vec<(String, Vec<Value>)>,
) -> (Envoy, BTreeMap<String, (u16, Value)>) {
    let authz = serve(Router::new().fallback(async || [("x-plan", "free")])).await;
    let mut plugin = pushed();
    plugin["rule_sets"] = json!({ "default": "free", "others": ["paid"], "by": "route_name" });
    let mut ports = BTreeMap::new();
    let planned = Envoy::asking(sidecar.port).plugin(plugin).patch(|config| {
        let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
        let mut cluster = clusters[0].clone();
        cluster["name"] = json!("authz");
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
        *at(&mut cluster, endpoint) = json!(authz);
        clusters.push(cluster);
        let routes = &mut at(config, MANAGER)["route_config"]["virtual_hosts"][0]["routes"];
        let mut paid = routes[0].clone();
        routes[0]["name"] = json!("free");
        paid["name"] = json!("paid");
        paid["match"]["headers"] = json!([{ "name": "x-plan", "string_match": { "exact": "paid" } }]);
        routes.as_array_mut().unwrap().insert(0, paid);
        let mut listeners = vec![at(config, LISTENER).take()];
        for (what, list) in lists {
            let port = free_port();
            let mut one = json!({ "static_resources": { "listeners": [listeners[0].clone()] } });
            one["static_resources"]["clusters"] = config["static_resources"]["clusters"].clone();
            one["stats_config"] = config["stats_config"].clone();
            at(&mut one, LISTENER)["name"] = json!(what);
            at(&mut one, LISTENER)["address"]["socket_address"]["port_value"] = json!(port);
            let ours = filters(&mut one).remove(0);
            let list = list.into_iter().map(|filter| if filter.is_null() { ours.clone() } else { filter });
            filters(&mut one).splice(0..0, list);
            listeners.push(at(&mut one, LISTENER).clone());
            ports.insert(what, (port, one));
        }
        config["static_resources"]["listeners"] = json!(listeners);
    });
    (planned.alone().await, ports)
}

/// The body of a request that asks for the paid plan, which tells the set that denied it.
async fn set(port: u16) -> String {
    let token = token(&json!({ "iss": "issuer", "plan": "free" }));
    let bearer = format!("Bearer {token}");
    let fields = [
        ("x-plan", "paid"),
        ("x-api-key", "alice"),
        ("authorization", &bearer),
    ];
    let answer = get_with(&format!("http://127.0.0.1:{port}/"), &fields).await;
    answer.text().await.unwrap()
}

/// What `check-config` prints for an Envoy file.
fn checked(sidecar: &Sidecar, config: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(binary());
    command
        .args(["check-config", "--envoy"])
        .arg(&file)
        .arg("--policy")
        .arg(&sidecar.policy);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Public finding 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_other_filters_clear_chooses_the_set_only_where_check_config_accepts_it() {
    let told = |body: &str| {
        let mut rules = per_key("deny");
        rules[0]["reply"] = json!({ "body": body });
        json!({ "rules": rules })
    };
    let rules = json!({ "free": told("free"), "paid": told("paid") });
    let text = format!(
        "{}\nrules: {rules}\n",
        policy("memory", "fixed_window", 1, "30d")
    );
    let sidecar = Sidecar::alone(&text).await;

    let refused = "error: `rule_sets.by`: `envoy.filters.http.";
    let warned = "warning: `rule_sets.by`: `envoy.filters.http.";
    let mut expected = BTreeMap::new();
    let mut lists = Vec::new();
    let mut add = |what: String, list: Vec<Value>, set: &'static str, says: String| {
        expected.insert(what.clone(), (set, says));
        lists.push((what, list));
    };
    let ours = Value::Null;
    for (name, clears) in clearing() {
        let before = [clears.as_slice(), slice::from_ref(&ours)].concat();
        add(
            format!("{name} before"),
            before,
            "paid",
            format!("{refused}{name}`"),
        );
        let between = [clears.as_slice(), &[rbac(), ours.clone()]].concat();
        add(format!("{name} and rbac"), between, "free", String::new());
        let after = [slice::from_ref(&ours), clears.as_slice()].concat();
        add(format!("{name} after"), after, "paid", warned.to_owned());
    }
    let (_, lua) = clearing().remove(1);
    for asks in asking() {
        let name = asks["name"].as_str().unwrap().to_owned();
        let between = vec![lua[0].clone(), asks.clone(), ours.clone()];
        add(format!("{name} between"), between, "free", String::new());
        let first = vec![asks, lua[0].clone(), ours.clone()];
        add(
            format!("{name} first"),
            first,
            "paid",
            format!("{refused}lua`"),
        );
    }
    add(
        "neither".to_owned(),
        vec![rbac(), ours],
        "paid",
        String::new(),
    );

    let (envoy, ports) = envoy(&sidecar, lists).await;
    let (first, _) = ports["neither"];
    eventually("the quota is used up", async || set(first).await == "paid").await;
    let mut wrong = Vec::new();
    for (what, (chosen, says)) in expected {
        let (port, config) = &ports[&what];
        let (set, printed) = (set(*port).await, checked(&sidecar, config));
        let is_told = match says.as_str() {
            "" => !printed.contains("rule_sets.by"),
            says => printed.contains(says),
        };
        if set != chosen || !is_told {
            wrong.push(format!("{what}: {set}, not {chosen}; {printed}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    envoy.is_well().await;
}
