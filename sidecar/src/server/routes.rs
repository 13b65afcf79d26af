//! The routes of a port, each with its description: a route cannot be added without one.

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn;
use axum::routing::{MethodFilter, MethodRouter};

use super::openapi::{Method, Operation};
use super::refusal::{method_not_allowed, not_found};
use super::web_pages::only_json;

/// Routes whose handlers have this state.
#[derive(Debug)]
pub(super) struct Routes<S> {
    router: Router<S>,
    operations: Vec<&'static Operation>,
    /// Whether a body requires the content type JSON.
    needs_json: bool,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// No routes.
    pub fn new() -> Self {
        Self {
            router: Router::new(),
            operations: Vec::new(),
            needs_json: false,
        }
    }

    /// The same; requests with a body are refused unless their `content-type` is JSON.
    #[must_use]
    pub fn only_json(self) -> Self {
        Self {
            needs_json: true,
            ..self
        }
    }

    /// Adds a route. Each method of a path is an operation of its own.
    #[must_use]
    pub fn with<H, T>(mut self, operation: &'static Operation, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        let method = match operation.method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Delete => MethodFilter::DELETE,
        };
        let mut route = MethodRouter::new().on(method, handler);
        if self.needs_json && operation.body.is_some() {
            route = route.route_layer(from_fn(only_json));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "this method adds the description with the route"
        )]
        {
            self.router = self.router.route(operation.path, route);
        }
        self.operations.push(operation);
        self
    }

    /// The descriptions of the routes.
    pub fn into_operations(self) -> Vec<&'static Operation> {
        self.operations
    }

    /// A router that answers other paths and methods with problem details.
    pub fn into_router(self) -> Router<S> {
        self.router
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
    }
}
