//! The parts of an operation's description.

use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    /// Its name in a path item.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}

/// Who may call an operation on the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Caller {
    /// Anyone who can connect, with any Host.
    Anyone,
    /// Callers with the admin token, if the sidecar has one.
    Operator,
    /// The same; unless the address is loopback, the sidecar must have a token.
    OperatorWithToken,
}

/// One method of one path.
#[derive(Debug)]
pub(in crate::server) struct Operation {
    pub method: Method,
    pub path: &'static str,
    /// The operation's name in generated clients.
    pub id: &'static str,
    pub tag: &'static str,
    pub summary: &'static str,
    pub description: &'static str,
    pub caller: Caller,
    pub parameters: &'static [Parameter],
    pub body: Option<Content>,
    /// Answers other than the errors that operations share: `errors.rs`.
    pub answers: &'static [Answer],
}

/// A parameter of the path or the query. Query parameters are optional.
#[derive(Debug)]
pub(in crate::server) struct Parameter {
    pub name: &'static str,
    /// `path` or `query`.
    pub within: &'static str,
    pub description: &'static str,
    /// The allowed values; empty: any.
    pub values: &'static [&'static str],
    pub example: &'static str,
}

/// An answer with this status.
#[derive(Debug)]
pub(in crate::server) struct Answer {
    pub status: u16,
    pub description: &'static str,
    /// For each header: name, description and schema.
    pub headers: &'static [(&'static str, &'static str, SchemaOf)],
    pub content: Content,
}

/// Generates a schema and the definitions that it needs.
pub(in crate::server) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A body.
#[derive(Debug)]
pub(in crate::server) struct Content {
    pub media_type: &'static str,
    pub schema: SchemaOf,
    /// JSON, or text if the media type is not JSON.
    pub example: &'static str,
}

/// The schema of a type.
pub(in crate::server) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Content {
    /// A JSON body of this type.
    pub const fn json<T: JsonSchema>(example: &'static str) -> Self {
        Self {
            media_type: "application/json",
            schema: of::<T>,
            example,
        }
    }

    /// A problem detail of this type.
    pub const fn problem<T: JsonSchema>(example: &'static str) -> Self {
        Self {
            media_type: sluicegate_protocol::PROBLEM_JSON,
            schema: of::<T>,
            example,
        }
    }

    /// A text body.
    pub const fn text(media_type: &'static str, example: &'static str) -> Self {
        Self {
            media_type,
            schema: of::<String>,
            example,
        }
    }
}
