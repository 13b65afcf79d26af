//! `envoy/*.schema.json`, `docs/openapi.json`, the tables of `docs/fields.md` and the filter's counters in `docs/metrics.md` match the types,
//! and the schema accepts what the filter's own reader accepts. `SLUICEGATE_WRITE=1 cargo test -p sluicegate --test sidecar -- schema` regenerates them.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::support::{read, repository, rows};
use serde_json::{Value, json};
use sluicegate::lint::Found;
use sluicegate::policy::{Policy, policy_schema};
use sluicegate_rules::config::{self, schema::json_schema};
use sluicegate_rules::{
    COUNTERS_OF_RULE, COUNTERS_OF_SETTLE, FIXED_COUNTERS, OF_UPDATES, counter_of_limit,
    counter_of_rule,
};

/// Compares a file with its expected content, or writes it.
fn is_up_to_date(path: &str, should_be: &str) {
    let path = repository(path);
    if std::env::var_os("SLUICEGATE_WRITE").is_some() {
        std::fs::write(&path, should_be).unwrap();
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let path = path.display();
    assert!(
        is == should_be,
        "{path} is old: SLUICEGATE_WRITE=1 writes it"
    );
}

#[test]
fn the_committed_schemas_match_the_types() {
    for (path, schema) in [
        ("envoy/sluicegate.schema.json", json_schema()),
        ("envoy/policy.schema.json", policy_schema()),
    ] {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        is_up_to_date(path, &text);
    }
}

#[test]
fn the_committed_openapi_document_matches_the_routes_and_types() {
    let document = sluicegate::server::openapi::document();
    let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
    is_up_to_date("docs/openapi.json", &text);
}

/// A property's type, from its schema.
fn kind(property: &Value) -> String {
    if let Some(reference) = property["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(list) = property[several].as_array() {
            let kinds = list.iter().filter(|one| one["type"] != "null").map(kind);
            return kinds.collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(constant) = property["const"].as_str() {
        return format!("`{constant}`");
    }
    if let Some(constants) = property["enum"].as_array() {
        let constants = constants.iter();
        let spelt = constants.map(|one| format!("`{}`", one.as_str().unwrap()));
        return spelt.collect::<Vec<_>>().join(", ");
    }
    let kind = match &property["type"] {
        Value::Array(list) => list[0].as_str().unwrap(),
        kind => kind.as_str().unwrap_or("anything"),
    };
    match kind {
        "array" => format!("list of {}", self::kind(&property["items"])),
        "string" => "text".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" => "number".to_owned(),
        "object" if property["properties"].is_object() => {
            let names = property["properties"].as_object().unwrap().keys();
            let names = names.cloned().collect::<Vec<_>>().join(", ");
            format!("`{{{names}: ...}}`")
        }
        other => other.to_owned(),
    }
}

fn one_line(text: &Value) -> String {
    let words = text.as_str().unwrap_or_default().split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

/// Title, description and a table of fields or values.
fn section(page: &mut String, name: &str, definition: &Value) {
    let about = one_line(&definition["description"]);
    write!(page, "\n### {name}\n\n{about}\n").unwrap();
    if let Some(properties) = definition["properties"].as_object() {
        let required = definition["required"].as_array();
        let required = required.map_or(&[][..], Vec::as_slice);
        page.push_str("\n| field | meaning | type | default |\n|---|---|---|---|\n");
        for (field, property) in properties {
            let default = match &property["default"] {
                _ if required.contains(&json!(field)) => "*required*".to_owned(),
                Value::Null => String::new(),
                Value::String(text) if text.is_empty() => String::new(),
                Value::Array(list) if list.is_empty() => String::new(),
                Value::Object(fields) if fields.len() > 1 => String::new(),
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            let says = one_line(&property["description"]).replace('|', "\\|");
            let kind = kind(property);
            writeln!(page, "| `{field}` | {says} | {kind} | {default} |").unwrap();
        }
        return;
    }
    let several = ["oneOf", "anyOf"].into_iter();
    let values = several
        .map(|name| &definition[name])
        .find_map(Value::as_array);
    page.push_str("\n| value | meaning |\n|---|---|\n");
    for value in values.into_iter().flatten() {
        let says = one_line(&value["description"]);
        writeln!(page, "| {} | {says} |", kind(value)).unwrap();
    }
}

/// The filter's configuration, and what a rule set of a policy consists of.
fn tables() -> String {
    let (filter, policy) = (json_schema(), policy_schema());
    let mut definitions: BTreeMap<_, _> = filter["$defs"].as_object().unwrap().iter().collect();
    let mut open = vec!["RuleSetFile".to_owned()];
    while let Some(name) = open.pop() {
        let (name, definition) = policy["$defs"]
            .as_object()
            .unwrap()
            .get_key_value(&name)
            .unwrap();
        if definitions.insert(name, definition).is_none() {
            let text = definition.to_string();
            let named = text.split("#/$defs/").skip(1);
            open.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
    let mut page = String::new();
    section(&mut page, "Configuration", &filter);
    for (name, definition) in definitions {
        section(&mut page, name, definition);
    }
    page
}

fn counters() -> String {
    let fixed = "
        decisions | requests for which a rule had a check
        admitted | of those, let through by a verdict
        denied | of those, answered with 429
        unavailable_allowed | of those, let through without a verdict
        unavailable_denied | of those, answered with 503 because there was no verdict
        refused_cost_over_limit | of those, answered with 422: the cost exceeds what the limit ever allows
        refused_missing_part | requests answered with 403: a key component was missing, with `when_missing: deny`
        refused_ambiguous_part | requests answered with 400: a key component had several different values
        refused_unreadable_part | requests answered with 400: a key component could not be read
        error_no_answer | requests without a verdict because no answer came in time: the sidecar is slow or hangs
        error_unreachable | requests without a verdict because Envoy could not send the callout to a sidecar: no healthy endpoint or connection refused
        error_status | requests without a verdict because the sidecar refused the callout: answered with a status other than 200
        error_body | requests, and decisions of shadow rules, without a verdict because the answer could not be read, or did not match the question
        error_store | requests, and decisions of shadow rules, without a verdict because the sidecar's store did not answer, or a lease ended meanwhile
        error_decision | requests, and decisions of shadow rules, that could not be decided: policy and configuration do not match, or one request has more than 32 checks
        error_full | requests without a verdict because the queue of waiting requests was full
        refused_too_long | requests answered with 414 or 431: path, query or header was too long for a rule to evaluate
        error_unknown_cluster | requests without a verdict, and announcements, because Envoy has no cluster with the name in `sidecar.cluster`
        configuration_refused | plugin configurations that the filter refused: the one before stays in force until Envoy restarts
        admitted_by_lease | of the admitted, those that needed no callout: the sidecar had lent units in advance
        slots_outlived | requests that went on longer than the `longest` of a limit of how many at once, each counted once for each limit: their slots are not renewed any more
    ";
    let of_rule = "
        decisions | requests for which this rule had a check
        unavailable_allowed | of those, let through without a verdict
        unavailable_denied | of those, answered with 503 because there was no verdict; a rule with `allow` is not counted where the `deny` of another one decided
    ";
    let of_settle = "
        settle_known | of a rule that settles: requests whose usage was told
        settle_unknown | of those without a usage: the response ended well
        settle_failed | the upstream failed
        settle_cut | the stream ended before the response did
        settle_not_reached | the request never reached the upstream: all came back
        settle_odd | requests that told a usage which is no number, below 0 or above `max`
        settle_lost | settles that came too late, or of which too many waited: what was reserved stays
        settle_units_returned | units that came back
        settle_units_charged | units that were used beyond what was reserved
        settle_units_kept | units that stay reserved, as a rule says of requests without a usage
        settle_units_lost | units that were used beyond what was reserved, and could not be charged any more
    ";
    let of_updates = "
        configuration_unbuilt | plugin configurations that the filter did not build, because its VM had 512 MiB of memory already: their requests get `until_rules.then`
        rules_updated | changes of rules that came into force, in each worker
        rules_refused | rules from the sidecar that could not be used: the earlier ones stay in force
        no_rules_allowed | requests let through because no rules were known in time
        no_rules_denied | requests answered with 503 because no rules were known in time
    ";
    let [fixed, of_updates, of_rule, of_settle] = [fixed, of_updates, of_rule, of_settle]
        .map(|table| rows(table).collect::<Vec<[String; 2]>>());
    assert!(fixed.iter().map(|[name, _]| name).eq(&FIXED_COUNTERS));
    assert!(of_updates.iter().map(|[name, _]| name).eq(&OF_UPDATES));
    assert!(of_rule.iter().map(|[name, _]| name).eq(&COUNTERS_OF_RULE));
    let of_settles = of_settle.iter().map(|[name, _]| name);
    assert!(of_settles.eq(&COUNTERS_OF_SETTLE));
    let mut page = "\n| counter | counts |\n|---|---|\n".to_owned();
    for [name, what] in fixed.into_iter().chain(of_updates) {
        writeln!(page, "| `{name}` | {what} |").unwrap();
    }
    for [name, what] in of_rule.into_iter().chain(of_settle) {
        let name = counter_of_rule("RULE", &name);
        writeln!(page, "| `{name}` | {what} |").unwrap();
    }
    let of_limit = "
        denied | requests that this limit of this rule denied
        shadow_denied | requests that it would have denied if the rule were enforced
        shadow_admitted | requests that the shadow rule would have admitted, with this limit the one with the least room
    ";
    for [name, what] in rows(of_limit) {
        let name = counter_of_limit("RULE", "LIMIT", &name);
        writeln!(page, "| `{name}` | {what} |").unwrap();
    }
    page
}

/// Replaces the text between two marks.
fn between(page: &str, mark: &str, text: &str) -> String {
    let begin = format!("<!-- {mark}: generated from the types -->\n");
    let end = format!("<!-- end of {mark} -->");
    let (before, rest) = page.split_once(&begin).expect(&begin);
    let (_, after) = rest.split_once(&end).expect(&end);
    format!("{before}{begin}{text}\n{end}{after}")
}

#[test]
fn the_documents_list_every_field_and_every_counter() {
    for (page, mark, table) in [
        ("docs/fields.md", "fields", tables()),
        ("docs/metrics.md", "counters", counters()),
    ] {
        is_up_to_date(page, &between(&read(page), mark, &table));
    }
}

/// Every complete plugin configuration in docs/filter.md and in the Envoy files.
fn examples() -> Vec<(String, Value)> {
    let mut examples = Vec::new();
    for name in ["README.md", "docs/filter.md", "docs/rules.md"] {
        let page = read(name);
        for block in page.split("```yaml\n").skip(1) {
            let (yaml, _) = block.split_once("```").unwrap();
            let value: Value = serde_saphyr::from_str(yaml).expect(yaml);
            if value.get("sidecar").is_some() {
                examples.push((format!("{name}: {yaml}"), value));
            }
        }
    }
    // Every configuration in any Envoy file under `envoy/`.
    for entry in std::fs::read_dir(repository("envoy")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut found = Found::default();
        found.add("", &text).unwrap();
        for plugin in found.plugins {
            examples.push((path.display().to_string(), plugin.configuration.value));
        }
    }
    examples
}

#[test]
fn schema_and_filter_accept_every_example() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    let examples = examples();
    assert!(examples.len() >= 4, "{}", examples.len());
    for (name, example) in examples {
        if let Err(error) = validator.validate(&example) {
            panic!("{name}: {error} at {}", error.instance_path());
        }
        let read = config::from_json(&example);
        read.unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = config::settings(example);
        read.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn the_schema_of_a_policy_refuses_the_rules_that_the_sidecar_refuses() {
    let validator = jsonschema::validator_for(&policy_schema()).unwrap();
    let limit = json!({ "algorithm": "sliding_log", "windows": [{ "quota": 9, "per": "1m" }] });
    let good = json!({ "name": "r", "when_unavailable": "deny",
        "checks": [{ "limit": "l", "key": [{ "header": "x" }], "cost": 5 }] });
    let policy =
        |rules: Value| json!({ "limits": { "l": limit }, "rules": { "s": { "rules": rules } } });
    let accepted = |rules: Value| {
        let policy = policy(rules);
        [
            Policy::parse(&policy.to_string()).is_ok(),
            validator.is_valid(&policy),
        ]
    };
    assert_eq!(accepted(json!([good])), [true; 2]);
    assert_eq!(accepted(json!({})), [false; 2]);
    let table = r#"
        /extra | 1
        /name | "a b"
        /name | ""
        /when_unavailable | "perhaps"
        /when_unavailable | null
        /match | { "path": "x" }
        /match | { "methods": ["get"] }
        /match | { "headers": [{ "name": "x" }] }
        /match | { "headers": [{ "name": "x", "equals": "a", "prefix": "b" }] }
        /match | { "any": [{ "nto": {} }] }
        /checks | []
        /checks/0/limit | 7
        /checks/0/limit | { "by": { "header": "x" }, "map": {} }
        /checks/0/key | []
        /checks/0/key | [{}]
        /checks/0/key | [{ "header": "x", "path": true }]
        /checks/0/key | [{ "address": { "trusted_hops": 0 } }]
        /checks/0/key | [{ "address": { "ipv4_bits": 33 } }]
        /checks/0/key | [{ "mtls": "x" }]
        /checks/0/key | [{ "jwt": { "claim": "sub" } }]
        /checks/0/cost | 0
        /checks/0/cost | 1.5
        /checks/0/cost | {}
        /checks/0/cost | { "header": "x", "max": 5 }
        /checks/0/cost | { "table": [] }
        /checks/0/cost | { "table": [{ "cost": 1 }], "header": "x" }
        /checks/0/when_missing | "never"
        /checks/0/when_missing | { "use": "" }
        /reply | { "headers": "all" }
        /reply | { "on_admited": true }
    "#;
    for [pointer, value] in rows(table) {
        let value: Value = serde_json::from_str(&value).unwrap();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let mut broken = good.clone();
        let parent = broken.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(field);
        } else {
            parent.insert(field.to_owned(), value.clone());
        }
        assert_eq!(accepted(json!([broken])), [false; 2], "{pointer} {value}");
    }
}

#[test]
fn the_schema_and_the_filter_accept_and_refuse_the_same_configurations() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    let good = json!({ "version": 2, "sidecar": { "cluster": "s" },
        "rule_sets": { "default": "gateway", "others": ["internal"], "by": "route_name" },
        "until_rules": { "hold": "1s", "then": "allow" } });
    let by_filter = |value: &Value| config::settings(value.clone()).is_ok();
    let least = json!({ "version": 2, "sidecar": { "cluster": "s" } });
    for good in [&good, &least] {
        assert_eq!([by_filter(good), validator.is_valid(good)], [true; 2]);
    }
    for (field, value) in [
        ("version", json!(1)),
        ("version", json!(3)),
        ("sidecar", json!({})),
        ("sidecar", json!({ "cluster": "" })),
        ("sidecar", json!({ "cluster": "s", "timeout": 50 })),
        ("extra", json!(1)),
        ("rule_sets", json!({})),
        ("rule_sets", json!({ "default": "a", "by": "header" })),
        ("until_rules", json!({ "then": "perhaps" })),
        (
            "rules",
            json!([{ "name": "r", "checks": [], "when_unavailable": "deny" }]),
        ),
        ("reply", json!({})),
        ("upstream_paths", json!("go")),
    ] {
        let mut broken = good.clone();
        broken[field] = value.clone();
        let accepted = [by_filter(&broken), validator.is_valid(&broken)];
        assert_eq!(accepted, [false; 2], "{field} {value}");
    }
}

/// Every policy in the documents, and the shipped one.
fn policies() -> Vec<String> {
    let mut found = vec![read("envoy/policy.yaml")];
    for name in [
        "README.md",
        "docs/jobs.md",
        "docs/leases.md",
        "docs/matching.md",
        "docs/overrides.md",
        "docs/policy.md",
        "docs/quotas.md",
        "docs/rules.md",
    ] {
        let page = read(name);
        for block in page.split("```yaml\n").skip(1) {
            let (yaml, _) = block.split_once("```").unwrap();
            if yaml.contains("\nlimits:") || yaml.starts_with("limits:") {
                found.push(yaml.to_owned());
            }
        }
    }
    found
}

#[test]
fn the_schema_of_a_policy_accepts_every_example_and_refuses_a_misspelt_field() {
    let validator = jsonschema::validator_for(&policy_schema()).unwrap();
    let policies = policies();
    let folder = tempfile::tempdir().unwrap();
    let consumers = "pepper: 0123456789ab\nconsumers: {}\n";
    std::fs::write(folder.path().join("consumers.yaml"), consumers).unwrap();
    assert!(policies.len() >= 7, "{}", policies.len());
    for text in policies {
        let policy: Value = serde_saphyr::from_str(&text).expect(&text);
        if let Err(error) = validator.validate(&policy) {
            panic!("{text}: {error} at {}", error.instance_path());
        }
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, &text).unwrap();
        Policy::load(&file).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    let all = "
store: { url: 'rediss+sentinel://h/m', username_file: u, password_file: p, key_prefix: e/, connections: 3,
  tls: { ca: c, certificate: d, key: k, server_name: name }, sentinel: { username_file: su, password_file: sp } }
store_timeout: 20ms
memory_limit: 256MiB
denial_ttl: 1s
limits:
  l:
    algorithm: token_bucket
    windows: [{ quota: 60000, per: 1m, burst: 5000 }]
    when_store_is_down: deny
    enforce: true
    lease: { longest: 100ms }
    overrides:
      - { key: a, quota: 50000, burst: 5000, until: 2026-11-22T03:00:00Z, reason: r, by: b }
      - { key: b, unlimited: true }
      - { key: c, blocked: true }
      - { key: d, windows: [{ quota: 70000, per: 1m }] }
  m: { algorithm: sliding_window, windows: [{ quota: 5, per: 1m, precision: 1s }], quota_from_request: { max: 9 } }
  month: { algorithm: fixed_window, windows: [{ quota: 5, per: month, time_zone: UTC }] }
";
    Policy::parse(all).unwrap();
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
    assert!(validator.is_valid(&read(all)));
    let mut count = 0;
    for (end, _) in all.match_indices(':') {
        let is_field =
            all[end + 1..].starts_with([' ', '\n']) && !all[..end].ends_with([' ', '\n']);
        let field = all[..end].rsplit([' ', '\n']).next().unwrap();
        if !is_field || ["l", "m", "month"].contains(&field) {
            continue;
        }
        let broken = format!("{}x{}", &all[..end], &all[end..]);
        assert!(!validator.is_valid(&read(&broken)), "{field}");
        assert!(Policy::parse(&broken).is_err(), "{field}");
        count += 1;
    }
    assert!(count > 30, "{count}");
    let table = "
        quota: 60000 | quota: -1
        connections: 3 | connections: 17
        max: 9 | max: many
        : deny | : perhaps
        token_bucket | token-bucket
    ";
    for [from, to] in rows(table) {
        let broken = all.replacen(&from, &to, 1);
        assert!(!validator.is_valid(&read(&broken)), "{to}");
    }
}
