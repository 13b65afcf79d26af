//! The OpenAPI document's examples are what its schemas say, and what the sidecar reads.

use serde_json::{Value, json};
use sluicegate::server::openapi::document;

/// Every body of the document, with where it stands.
fn bodies(document: &Value) -> Vec<(String, &Value)> {
    let mut bodies = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "servers" {
                continue;
            }
            if let Some(content) = operation["requestBody"]["content"].as_object() {
                let of = |kind| format!("{method} {path}: request: {kind}");
                assert_eq!(operation["requestBody"]["required"], true, "{path}");
                bodies.extend(content.iter().map(|(kind, body)| (of(kind), body)));
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                let of = |kind| format!("{method} {path}: {status}: {kind}");
                let content = response["content"].as_object().unwrap();
                bodies.extend(content.iter().map(|(kind, body)| (of(kind), body)));
            }
        }
    }
    bodies
}

/// The examples of a body: one, or those of several errors with one status, by code.
fn examples(body: &Value) -> Vec<&Value> {
    let several = body["examples"].as_object().into_iter().flatten();
    let several = several.map(|(_, example)| &example["value"]);
    body.get("example").into_iter().chain(several).collect()
}

#[test]
fn every_body_has_an_example_that_its_schema_accepts() {
    let document = document();
    let bodies = bodies(&document);
    assert!(bodies.len() > 50, "{}", bodies.len());
    for (place, body) in bodies {
        let mut schema = json!({ "components": document["components"] });
        schema["allOf"] = json!([body["schema"]]);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let examples = examples(body);
        assert!(!examples.is_empty(), "{place}");
        for example in examples {
            let error = validator.validate(example).err();
            assert!(error.is_none(), "{place}: {}", error.unwrap());
        }
    }
}

#[test]
fn every_error_is_described_as_a_problem_detail() {
    for (place, body) in bodies(&document()) {
        let status = place.split(": ").nth(1).unwrap();
        let is_error = status.starts_with(['4', '5']);
        assert_eq!(place.ends_with("problem+json"), is_error, "{place}");
        if is_error {
            for example in examples(body) {
                assert!(example["code"].is_string(), "{place}");
                assert_eq!(example["status"].to_string(), status);
            }
        }
    }
}

#[test]
fn the_sidecar_reads_the_examples_of_requests() {
    let document = document();
    let example = |path: &str| {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        body["example"].to_string().into_bytes()
    };
    let decide = example("/v1/decide");
    let read = sluicegate_protocol::read_decisions(&decide).unwrap();
    assert!(!read.decisions.is_empty() && read.decisions.iter().all(Result::is_ok));
    let settle = example("/v1/settle");
    let read = sluicegate_protocol::read_settles(&settle).unwrap();
    assert!(!read.is_empty() && read.iter().all(Result::is_ok));
    let reset = example("/v1/reset");
    let read = sluicegate_protocol::read_resets(&reset).unwrap();
    assert!(!read.is_empty() && read.iter().all(Result::is_ok));
}

#[test]
fn a_schema_refuses_what_the_sidecar_refuses() {
    let document = document();
    let mut schema = json!({ "components": document["components"] });
    schema["$ref"] = json!("#/components/schemas/Request");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let check = json!({ "limit": "l", "key": "k" });
    for (checks, good) in [
        (json!([check]), true),
        (json!([]), false),
        (json!(vec![check.clone(); 33]), false),
        (json!([{ "limit": "l", "key": "" }]), false),
        (json!([{ "limit": "l", "key": "k", "cost": -1 }]), false),
        (json!([{ "limit": "l", "key": "k", "cots": 1 }]), false),
    ] {
        let body = json!({ "decisions": [{ "checks": checks }] });
        assert_eq!(validator.is_valid(&body), good, "{body}");
        let bytes = body.to_string().into_bytes();
        let read = sluicegate_protocol::read_decisions(&bytes).unwrap();
        assert_eq!(read.decisions[0].is_ok(), good, "{body}");
    }
}
