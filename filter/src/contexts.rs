//! Envoy's events, as the `proxy-wasm` crate has them, for the contexts of `filter/vm`.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};
use sluicegate_vm::{Root, Stream};

use crate::envoy::Envoy;

/// Of a root context.
pub struct RootEvents(pub Root<Envoy>);

impl RootContext for RootEvents {
    fn on_configure(&mut self, size: usize) -> bool {
        self.0.on_configure(size)
    }

    fn on_queue_ready(&mut self, queue: u32) {
        self.0.on_queue_ready(queue);
    }

    fn on_tick(&mut self) {
        self.0.on_tick();
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(StreamEvents(self.0.stream(id))))
    }
}

impl Context for RootEvents {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body_size: usize, _: usize) {
        self.0.on_response(token, headers, body_size);
    }
}

/// Of a request.
struct StreamEvents(Stream<Envoy>);

const fn action(action: sluicegate_vm::Action) -> Action {
    match action {
        sluicegate_vm::Action::Continue => Action::Continue,
        sluicegate_vm::Action::Pause => Action::Pause,
    }
}

impl HttpContext for StreamEvents {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        action(self.0.on_request_headers())
    }

    // For a waiting request, Envoy calls these two only if `allow_on_headers_stop_iteration` is set; without them the
    // body would reach the upstream before the verdict.
    fn on_http_request_body(&mut self, _: usize, _: bool) -> Action {
        action(self.0.on_request_rest())
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        action(self.0.on_request_rest())
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.0.on_response_headers();
        Action::Continue
    }
}

impl Context for StreamEvents {}
