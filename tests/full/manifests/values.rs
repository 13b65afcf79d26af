//! The chart's values: their schema, and the document made from it.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::{is_up_to_date, text, yaml};

use super::scenes;

const SCHEMA: &str = "deploy/helm/sluicegate/values.schema.json";

pub fn schema() -> Value {
    serde_json::from_str(&text(SCHEMA)).expect("a schema")
}

fn defaults() -> Value {
    yaml("deploy/helm/sluicegate/values.yaml")
}

#[test]
fn docs_sizing_md_has_the_charts_memory() {
    let of = |what: &str| defaults()["sidecar"]["resources"][what]["memory"].clone();
    let (requests, limits) = (of("requests"), of("limits"));
    let [requests, limits] = [&requests, &limits].map(|memory| memory.as_str().unwrap());
    let row = format!("| memory, with Redis (the chart's default) | {requests} | {limits} |");
    assert!(text("docs/sizing.md").contains(&row), "{row}");
}

#[test]
fn generated_the_schema_has_the_filters_and_what_must_be_set() {
    // Draft 7 of JSON Schema has definitions elsewhere.
    let filters = text("envoy/sluicegate.schema.json").replace("#/$defs/", "#/definitions/");
    // Words that draft 7 does not know would be ignored in silence.
    assert!(!filters.contains("\"unevaluated") && !filters.contains("\"prefixItems\""));
    let filters: Value = serde_json::from_str(&filters).unwrap();
    let mut definitions = filters["$defs"].as_object().expect("definitions").clone();
    let mut configuration = filters.as_object().unwrap().clone();
    for field in ["$defs", "$schema", "title"] {
        configuration.remove(field);
    }
    // By default there are none; then the chart names what is missing.
    configuration.remove("required");
    // The chart fills it in.
    let sidecar = definitions["Sidecar"].as_object_mut().unwrap();
    assert_eq!(sidecar.remove("required"), Some(json!(["cluster"])));
    let properties = sidecar["properties"].as_object_mut().unwrap();
    properties.remove("cluster").expect("the sidecar's cluster");
    definitions.insert("FilterConfiguration".to_owned(), json!(configuration));

    let mut schema = schema();
    schema["definitions"] = json!(definitions);
    require(&mut schema, &defaults());
    let written = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    is_up_to_date(SCHEMA, &written, "chart");
}

/// Requires what a template cannot do without, because `null` removes a value's default: closed objects, and single values
/// with a default. Without a list, an open object, a text or a switch, the chart does as if it were empty.
fn require(schema: &mut Value, defaults: &Value) {
    let properties = schema.get_mut("properties");
    let Some(properties) = properties.and_then(Value::as_object_mut) else {
        return;
    };
    let mut required = Vec::new();
    for (name, schema) in properties {
        let default = &defaults[name];
        require(schema, default);
        let types = schema["type"].as_array();
        let is_optional = types.is_some_and(|types| types.contains(&json!("null")));
        let is_needed = match default {
            _ if is_optional => false,
            Value::Object(_) => schema["properties"].is_object(),
            Value::Number(_) | Value::Bool(true) => true,
            Value::String(text) => !text.is_empty() || name == "kind",
            _ => false,
        };
        if is_needed {
            required.push(name.clone());
        }
    }
    schema["required"] = json!(required);
}

#[test]
fn generated_the_document_lists_every_value() {
    let mut page = "# Values of the chart\n\n\
        `make chart` writes this page from the chart's schema. Helm refuses other values, and values of another type. \
        `null` is empty, or refused where something must be set.\n\n\
        | value | meaning | default |\n|---|---|---|\n"
        .to_owned();
    let schema = schema();
    let properties = schema["properties"].as_object().unwrap();
    rows("", properties, &defaults(), &mut page);
    is_up_to_date("docs/install/values.md", &page, "chart");
}

/// A row for each value; every value must have a description and a default.
fn rows(path: &str, properties: &Map<String, Value>, defaults: &Value, page: &mut String) {
    for (name, schema) in properties {
        let path = format!("{path}{name}");
        if path == "global" {
            continue;
        }
        let default = &defaults[name];
        if let Some(inner) = schema["properties"].as_object() {
            assert_eq!(schema["additionalProperties"], false, "{path} is open");
            rows(&format!("{path}."), inner, default, page);
            continue;
        }
        assert!(defaults.get(name).is_some(), "{path} has no default");
        let meaning = schema["description"].as_str();
        let meaning = linked(meaning.unwrap_or_else(|| panic!("{path} has no description")));
        let default = match default {
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            value => format!("`{value}`"),
        };
        let is_empty = ["``", "`{}`", "`[]`"].contains(&default.as_str());
        let default = if is_empty { "" } else { &default };
        writeln!(page, "| `{path}` | {meaning} | {default} |").unwrap();
    }
}

/// With links to the documents that it names.
fn linked(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split(' ') {
        let name = word.trim_end_matches(['.', ')', ',']);
        let end = &word[name.len()..];
        let start = name.len() - name.trim_start_matches('(').len();
        let (open, name) = name.split_at(start);
        words.push(match name.strip_prefix("docs/") {
            Some(page) => format!("{open}[{page}](../{page}){end}"),
            None => word.to_owned(),
        });
    }
    words.join(" ")
}

#[test]
fn no_default_is_without_a_schema() {
    fn names(value: &Value, schema: &Value, path: &str) {
        let Some(known) = schema["properties"].as_object() else {
            return;
        };
        for (name, value) in value.as_object().expect("an object") {
            let schema = known.get(name);
            let schema = schema.unwrap_or_else(|| panic!("{path}.{name} is in no schema"));
            names(value, schema, &format!("{path}.{name}"));
        }
    }
    names(&defaults(), &schema(), "");
}

#[test]
fn numbers_keep_their_digits() {
    let largest = "policy.limits.large: { algorithm: fixed_window, windows: [{ quota: 9007199254740991, per: 1h }] }";
    let manifests = scenes::rendered_with("istio.yaml", &[largest]);
    let policy = &chart::manifest(&manifests, "ConfigMap", "sluicegate-policy")["data"];
    let policy = policy["policy.yaml"].as_str().unwrap();
    assert!(policy.contains("9007199254740991"), "{policy}");
}
