//! What the descriptions of endpoints share: schemas, errors, the token.

use schemars::JsonSchema;
use serde_json::{Value, json};
use sluicegate_protocol::{PROBLEM_JSON, ProblemDetails};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{Operation, Paths};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Content, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::body;
use super::refusal::Refusal;

/// A reference to the schema of a type.
pub(super) fn of<T: JsonSchema>() -> String {
    format!("#/components/schemas/{}", T::schema_name())
}

/// Adds to the descriptions of routes. As with layers, routes that are added later are left as they are.
pub(super) trait Describe: Sized {
    /// Where the descriptions are.
    fn paths(&mut self) -> &mut Paths;

    /// Adds errors. Those with one status are examples of one response.
    fn refusing(self, refusals: &[Refusal]) -> Self {
        self.each(|operation| {
            for refusal in refusals {
                refuse(operation, refusal);
            }
        })
    }

    /// Adds that a body is required, and the errors that it can have as a whole.
    fn with_body(self) -> Self {
        self.refusing(&body::errors()).each(|operation| {
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                body.required = Some(Required::True);
            }
        })
    }

    /// Sets the group in the document.
    fn tagged(self, tag: &str) -> Self {
        self.each(|operation| operation.tags = Some(vec![tag.to_owned()]))
    }

    /// Adds that the admin token is required.
    fn with_token(self) -> Self {
        self.each(|operation| {
            let none: [&str; 0] = [];
            let either = ["bearer", "basic"].map(|scheme| SecurityRequirement::new(scheme, none));
            operation.security = Some(either.into());
        })
    }

    /// Changes the description of each operation.
    fn each(mut self, change: impl Fn(&mut Operation)) -> Self {
        for item in self.paths().paths.values_mut() {
            let methods = [
                &mut item.get,
                &mut item.put,
                &mut item.post,
                &mut item.delete,
            ];
            methods.into_iter().flatten().for_each(&change);
        }
        self
    }
}

impl<S: Clone + Send + Sync + 'static> Describe for OpenApiRouter<S> {
    fn paths(&mut self) -> &mut Paths {
        &mut self.get_openapi_mut().paths
    }
}

impl<S> Describe for UtoipaMethodRouter<S> {
    fn paths(&mut self) -> &mut Paths {
        let (_, paths, _) = self;
        paths
    }
}

fn refuse(operation: &mut Operation, refusal: &Refusal) {
    let details = refusal.details();
    let responses = &mut operation.responses.responses;
    let response = responses.entry(details.status.to_string());
    let RefOr::T(response) = response.or_insert_with(|| problem().into()) else {
        return;
    };
    if !response.description.is_empty() {
        response.description += "; or: ";
    }
    response.description += &details.detail;
    if let Some(RefOr::T(content)) = response.content.get_mut(PROBLEM_JSON) {
        let value = json!(details);
        let code = value.get("code").and_then(Value::as_str);
        let code = code.unwrap_or_default().to_owned();
        let example = ExampleBuilder::new().value(Some(value));
        content.examples.insert(code, example.into());
    }
}

/// A response whose description and examples are still missing.
fn problem() -> Response {
    let schema = Ref::new(of::<ProblemDetails<'_>>());
    let response = ResponseBuilder::new().content(PROBLEM_JSON, Content::new(Some(schema)));
    response.build()
}
