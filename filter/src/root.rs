//! One plugin configuration. A VM may hold several at once: other listeners' and routes', and the one before a reload
//! while its requests finish. So nothing here is static: what belongs to a configuration hangs on its root.

use std::cell::Cell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use sluicegate_rules::Rules;

use crate::host;
use crate::stream::Stream;

/// What the requests of one configuration share.
pub struct Shared {
    pub rules: Rules,
    /// The last decision had no verdict. Kept to say so in the log once and not for each request.
    pub unavailable: Cell<bool>,
}

/// The root context; without a configuration until `on_configure` has found it good.
#[derive(Default)]
pub struct Root {
    shared: Option<Rc<Shared>>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let json = host::plugin_configuration(size).unwrap_or_default();
        match sluicegate_rules::parse(&json) {
            Ok(rules) => {
                self.shared = Some(Rc::new(Shared {
                    rules,
                    unavailable: Cell::new(false),
                }));
                true
            }
            Err(error) => {
                host::log(
                    LogLevel::Critical,
                    &format!("sluicegate: configuration refused: {error}"),
                );
                false
            }
        }
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream::new(self.shared.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
