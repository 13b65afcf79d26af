//! The OpenAPI document of both ports, generated from the routes and the types: `docs/openapi.json`, `sluicegate schema
//! --openapi` and `GET /v1/openapi.json`.
//!
//! | file | for |
//! |---|---|
//! | `describe.rs` | the parts of a description |
//! | `decisions.rs`, `admin.rs` | the operations of the two ports |
//! | `errors.rs` | the errors that operations share |
//!
//! To add an endpoint: describe it in `decisions.rs` or `admin.rs`, and give the description to `Routes::with`.

pub(super) mod admin;
pub(super) mod decisions;
mod describe;
mod errors;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RemoveRefSiblings;
use serde_json::{Map, Value, json};
use sluicegate_protocol::ProblemDetails;

use describe::{Answer, Content, Parameter};
pub(super) use describe::{Method, Operation};

use super::body::JSON;

/// The answer with the document.
const DOCUMENT: Answer = Answer {
    status: 200,
    description: "The document.",
    headers: &[],
    content: Content {
        media_type: JSON,
        schema: describe::of::<Map<String, Value>>,
        example: r#"{"openapi":"3.1.0"}"#,
    },
};

/// Answers a request for the document.
pub(super) async fn serve() -> Response {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, JSON)], TEXT.clone()).into_response()
}

/// The document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    // Tools for earlier versions ignore what is beside a `$ref`, and could not tell a verdict from another.
    let settings = settings.with_transform(RemoveRefSiblings::default());
    let mut generator = settings.into_generator();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let ports = [
        (super::decisions::routes().into_operations(), false),
        (super::admin::routes().into_operations(), true),
    ];
    for (operations, admin) in ports {
        for operation in operations {
            let item = paths.entry(operation.path).or_default();
            let described = describe(operation, admin, &mut generator);
            // A path that both ports have is described once.
            item.entry(operation.method.name()).or_insert(described);
            let servers = item.entry("servers").or_insert_with(|| json!([]));
            if let Value::Array(servers) = servers {
                let server = server(admin);
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
        }
    }
    let schemas = generator.take_definitions(true);
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate sidecar",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Two ports: one for decisions, which filters and jobs ask, and one for operators, Prometheus and \
                probes. Every error is a problem detail (RFC 9457) with a `code` for programs and the `field` that is wrong. \
                A port answers 404 for an unknown path and 405 with `allow` for a method that the path does not support. The few errors \
                that are answered before a request can be read (400, 414, 431) have no body. Clients must accept fields, \
                outcomes and codes that this document does not list; requests must not contain unknown fields.",
        },
        "tags": [
            { "name": "decisions", "description": "On the decision port (`--listen`). Web pages cannot call it." },
            { "name": "admin", "description": "On the admin port (`--admin-listen`). Requires the admin token, if the sidecar has one." },
            { "name": "probes", "description": "On the admin port; never requires the token." },
            { "name": "page", "description": "The live page, on the admin port." },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The admin token. A sidecar without an admin token requires none." },
                "basic": { "type": "http", "scheme": "basic", "description": "The admin token as the password, with any user name: for browsers." },
            },
        },
    });
    sluicegate_rules::config::schema::sorted(unwrapped(document))
}

/// Joins the lines of descriptions, which are made from wrapped comments.
fn unwrapped(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, field)| match field {
                Value::String(text) if name == "description" => {
                    (name, text.replace('\n', " ").into())
                }
                other => (name, unwrapped(other)),
            });
            Value::Object(fields.collect())
        }
        Value::Array(list) => list.into_iter().map(unwrapped).collect(),
        other => other,
    }
}

fn server(admin: bool) -> Value {
    if admin {
        json!({ "url": "http://127.0.0.1:9181", "description": "The admin port: `--admin-listen`" })
    } else {
        json!({ "url": "http://127.0.0.1:9180", "description": "The decision port: `--listen`" })
    }
}

fn describe(operation: &Operation, admin: bool, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    for (status, meaning, code, field) in errors::of(operation, admin) {
        let title = reason(status);
        let example = errors::example(status, title, &meaning, code, field);
        let schema = generator.subschema_for::<ProblemDetails<'_>>();
        let content =
            json!({ sluicegate_protocol::PROBLEM_JSON: { "schema": schema, "example": example } });
        let response = json!({ "description": meaning, "content": content });
        responses.insert(status.to_string(), response);
    }
    for answer in operation.answers {
        responses.insert(answer.status.to_string(), described(answer, generator));
    }
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "responses": responses,
        "security": if admin && operation.caller != describe::Caller::Anyone { json!([{ "bearer": [] }, { "basic": [] }]) } else { json!([]) },
    });
    if !operation.parameters.is_empty() {
        let parameters = operation.parameters.iter().map(parameter).collect();
        set(&mut described, "parameters", parameters);
    }
    if let Some(body) = &operation.body {
        let body = json!({ "required": true, "content": content(body, generator) });
        set(&mut described, "requestBody", body);
    }
    described
}

fn described(answer: &Answer, generator: &mut SchemaGenerator) -> Value {
    let mut response = json!({
        "description": answer.description,
        "content": content(&answer.content, generator),
    });
    let headers = answer.headers.iter().map(|(name, description, schema)| {
        let schema = schema(generator);
        let header = json!({ "description": description, "required": true, "schema": schema });
        ((*name).to_owned(), header)
    });
    let headers: Map<_, _> = headers.collect();
    if !headers.is_empty() {
        set(&mut response, "headers", headers.into());
    }
    response
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), value);
    }
}

fn content(content: &Content, generator: &mut SchemaGenerator) -> Value {
    let schema = (content.schema)(generator);
    // An example that is not JSON is text.
    let example: Value =
        serde_json::from_str(content.example).unwrap_or_else(|_| content.example.into());
    json!({ content.media_type: { "schema": schema, "example": example } })
}

fn parameter(parameter: &Parameter) -> Value {
    let mut schema = json!({ "type": "string" });
    if !parameter.values.is_empty() {
        set(&mut schema, "enum", json!(parameter.values));
    }
    json!({
        "name": parameter.name,
        "in": parameter.within,
        "required": parameter.within == "path",
        "description": parameter.description,
        "schema": schema,
        "example": parameter.example,
    })
}

fn reason(status: u16) -> &'static str {
    StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default()
}
