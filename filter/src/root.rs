//! One plugin configuration. A VM may hold several at once: other listeners' and routes', and the one before a reload
//! while its requests finish. So nothing here is static: what belongs to a configuration hangs on its root.

use std::cell::Cell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use sluicegate_rules::{Rules, Unusable};

use crate::host::{self, Counter};
use crate::stream::Stream;

/// What the requests of one configuration share.
pub struct Shared {
    pub rules: Rules,
    /// In the places that the rules know them by.
    counters: Vec<Option<Counter>>,
    /// The last decision had no verdict. Kept to say so in the log once and not for each request.
    unavailable: Cell<bool>,
}

impl Shared {
    fn new(rules: Rules) -> Self {
        let plugin = host::plugin_name();
        let plugin = if plugin.is_empty() {
            "sluicegate"
        } else {
            &plugin
        };
        let counter = |name: &String| Counter::new(&format!("{plugin}.{name}"));
        Self {
            counters: rules.counters().names().iter().map(counter).collect(),
            rules,
            unavailable: Cell::new(false),
        }
    }

    /// Counts one under the counter in this place.
    pub fn count(&self, place: usize) {
        if let Some(Some(counter)) = self.counters.get(place) {
            counter.increment();
        }
    }

    /// Logs when verdicts cease to come and when they come again.
    pub fn note(&self, why: Option<&Unusable>) {
        match (self.unavailable.replace(why.is_some()), why) {
            (false, Some(why)) => {
                host::log(LogLevel::Warn, &format!("sluicegate: no verdict: {why}"));
            }
            (true, None) => host::log(LogLevel::Warn, "sluicegate: verdicts come again"),
            _ => {}
        }
    }
}

/// The root context; without a configuration until `on_configure` has found it good.
#[derive(Default)]
pub struct Root {
    shared: Option<Rc<Shared>>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let configuration = host::plugin_configuration(size).unwrap_or_default();
        match sluicegate_rules::parse(&configuration) {
            Ok(rules) => {
                self.shared = Some(Rc::new(Shared::new(rules)));
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
