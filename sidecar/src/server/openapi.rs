//! The OpenAPI document of both ports, generated from the routes and the types: `docs/openapi.json`, `sluicegate schema
//! --openapi` and `GET /v1/openapi.json`.
//!
//! An endpoint is described by the `utoipa::path` attribute and the comment of its handler in `decisions.rs` or `admin.rs`;
//! errors that endpoints share are added where the routes are (`describe.rs`). The types' schemas are schemars', as they know all of serde's
//! attributes; a type that an attribute names is also in `schemas`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use schemars::generate::SchemaSettings;
use schemars::transform::RemoveRefSiblings;
use serde_json::{Map, Value, json};
use sluicegate_protocol::{
    Answer, FilterList, GiveBacks, GivenBack, Listed, OverrideList, OverrideWasRemoved,
    OverrideWasSet, ProblemDetails, RemoveOverride, Request, Resets, SetOverride, Top, WasReset,
    Whom,
};
use utoipa::openapi::ServerBuilder;
use utoipa::openapi::path::PathItem;

use super::body::JSON;
use super::decisions::VerdictProblem;

/// Answers with the document.
pub(super) async fn serve() -> axum::response::Response {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, JSON)], TEXT.clone()).into_response()
}

/// The document.
pub fn document() -> Value {
    let mut paths: BTreeMap<String, PathItem> = BTreeMap::new();
    for (port, url, description) in [
        (
            super::decisions::routes().into_openapi(),
            "http://127.0.0.1:9180",
            "The decision port: `--listen`",
        ),
        (
            super::admin::routes().into_openapi(),
            "http://127.0.0.1:9181",
            "The admin port: `--admin-listen`",
        ),
    ] {
        let server = ServerBuilder::new().url(url);
        let server = server.description(Some(description)).build();
        for (path, mut item) in port.paths.paths {
            item.servers = Some(vec![server.clone()]);
            paths.insert(path, item);
        }
    }
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
        ],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The admin token. A sidecar without an admin token requires none." },
                "basic": { "type": "http", "scheme": "basic", "description": "The admin token as the password, with any user name: for browsers." },
            },
        },
    });
    sluicegate_rules::config::schema::sorted(document)
}

/// The types that the descriptions of endpoints name, and those that they consist of.
fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    // Tools for earlier versions ignore what is beside a `$ref`, and could not tell a verdict from another.
    let settings = settings.with_transform(RemoveRefSiblings::default());
    let mut generator = settings.into_generator();
    generator.subschema_for::<Answer<'_>>();
    generator.subschema_for::<FilterList>();
    generator.subschema_for::<GiveBacks<'_>>();
    generator.subschema_for::<Listed<GivenBack>>();
    generator.subschema_for::<Listed<WasReset>>();
    generator.subschema_for::<OverrideList>();
    generator.subschema_for::<OverrideWasRemoved>();
    generator.subschema_for::<OverrideWasSet>();
    generator.subschema_for::<ProblemDetails<'_>>();
    generator.subschema_for::<RemoveOverride>();
    generator.subschema_for::<Request<'_>>();
    generator.subschema_for::<Resets<'_>>();
    generator.subschema_for::<SetOverride>();
    generator.subschema_for::<Top>();
    generator.subschema_for::<VerdictProblem<'_>>();
    generator.subschema_for::<Whom>();
    generator.take_definitions(true)
}
