//! The OpenAPI document of both ports, generated from the routes and the types: `docs/openapi.json`, `sluicegate schema
//! --openapi` and `GET /v1/openapi.json`.
//!
//! An endpoint is described by the `utoipa::path` attribute and the comment of its handler in `decisions.rs` or `admin.rs`;
//! errors that endpoints share are added where the routes are (`describe.rs`). The types' schemas are schemars', as they know all of serde's
//! attributes; a type that an attribute names is also in `schemas`. What no code knows is in `openapi.json`: the title, the
//! tags, an example of each body.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use schemars::generate::SchemaSettings;
use schemars::transform::RemoveRefSiblings;
use serde_json::{Map, Value, json};
use sluicegate_protocol::{
    Answer, FilterList, HoldList, Listed, OverrideList, OverrideWasRemoved, OverrideWasSet,
    ProblemDetails, RemoveOverride, Request, Resets, SetOverride, Settled, Settles, Top, WasReset,
};
use utoipa::openapi::ServerBuilder;
use utoipa::openapi::path::PathItem;

use super::body::JSON;
use super::decisions::VerdictProblem;
use crate::json::merge;

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
    let mut document = json!({
        "info": { "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "schemas": schemas() },
    });
    let rest: Value = serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    merge(&mut document, &rest);
    sluicegate_rules::config::schema::sorted(document)
}

/// The types that the descriptions of endpoints name, and those that they consist of.
fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    // Tools for earlier versions ignore fields beside a `$ref`, and could not tell the kinds of verdicts apart.
    let settings = settings.with_transform(RemoveRefSiblings::default());
    let mut generator = settings.into_generator();
    generator.subschema_for::<Answer<'_>>();
    generator.subschema_for::<FilterList>();
    generator.subschema_for::<HoldList>();
    generator.subschema_for::<Listed<Settled>>();
    generator.subschema_for::<Listed<WasReset>>();
    generator.subschema_for::<OverrideList>();
    generator.subschema_for::<OverrideWasRemoved>();
    generator.subschema_for::<OverrideWasSet>();
    generator.subschema_for::<ProblemDetails<'_>>();
    generator.subschema_for::<RemoveOverride>();
    generator.subschema_for::<Request<'_>>();
    generator.subschema_for::<Resets<'_>>();
    generator.subschema_for::<SetOverride>();
    generator.subschema_for::<Settles<'_>>();
    generator.subschema_for::<Top>();
    generator.subschema_for::<VerdictProblem<'_>>();
    generator.take_definitions(true)
}
