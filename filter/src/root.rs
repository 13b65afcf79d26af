//! One plugin configuration. A VM may have several at once: those of other listeners and routes, and the previous one
//! after a reload while its requests finish. So all state of a configuration belongs to its root context.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use sluicegate_protocol::FilterInfo;
use sluicegate_rules::{CONFIGURATION_REFUSED, CONFIGURATION_UNBUILT, ConfigError, Pushed, config};

use crate::callouts::Callouts;
use crate::host;
use crate::plugin::Plugin;
use crate::stream::Stream;

/// The root context; without a configuration until `on_configure` has accepted one.
pub struct Root {
    id: u32,
    callouts: Option<Rc<Callouts>>,
    /// The settings that decide on requests if a configuration was not built for lack of memory: nothing else of it is kept.
    unbuilt: Option<Rc<Pushed>>,
}

impl Root {
    pub const fn new(id: u32) -> Self {
        Self {
            id,
            callouts: None,
            unbuilt: None,
        }
    }
}

fn read(configuration: &[u8]) -> Result<Plugin, ConfigError> {
    let value = config::json(configuration)?;
    let announcement = FilterInfo {
        version: env!("CARGO_PKG_VERSION"),
        configuration: &config::fingerprint(&value),
    };
    let announcement = announcement.to_string();
    let (settings, pushed) = config::settings(value)?;
    Ok(Plugin::new(settings, pushed, announcement))
}

/// The settings that decide on requests without the rest of this configuration. `None` means 503: also if it cannot be read.
fn without_rules(configuration: &[u8]) -> Option<Pushed> {
    let value = config::json(configuration).ok()?;
    config::settings(value).ok().map(|(_, pushed)| pushed)
}

impl RootContext for Root {
    /// Reads the configuration. If it is invalid, logs the reason and returns false. If the VM has no room for it, returns true
    /// and lets no request pass that the configuration would not let pass: the VM would end when an allocation fails, or Envoy
    /// pass everything.
    fn on_configure(&mut self, size: usize) -> bool {
        let configuration = host::plugin_configuration(size).unwrap_or_default();
        if let Some(why) = host::no_memory() {
            self.unbuilt = without_rules(&configuration).map(Rc::new);
            host::add_to_counter(CONFIGURATION_UNBUILT, 1);
            let line = format!(
                "sluicegate: configuration not built, its requests get 503 or what `until_rules.then` says: {why}"
            );
            host::log(host::Level::Critical, &line);
            return true;
        }
        match read(&configuration) {
            Ok(plugin) => {
                host::log(
                    host::Level::Info,
                    &format!("sluicegate {}: configured", plugin.announcement),
                );
                self.callouts = Some(Rc::new(Callouts::new(self.id, plugin)));
                true
            }
            Err(error) => {
                // VMs that run with an earlier configuration have the same counter, and so show this.
                host::add_to_counter(CONFIGURATION_REFUSED, 1);
                host::log(
                    host::Level::Critical,
                    &format!("sluicegate: configuration refused: {error}"),
                );
                false
            }
        }
    }

    fn on_queue_ready(&mut self, queue: u32) {
        if let Some(callouts) = &self.callouts {
            callouts.on_wakeup(queue);
        }
    }

    fn on_tick(&mut self) {
        if let Some(callouts) = &self.callouts {
            callouts.on_tick();
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream::new(
            id,
            self.callouts.clone(),
            self.unbuilt.clone(),
        )))
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body_size: usize, _: usize) {
        if let Some(callouts) = &self.callouts {
            callouts.on_response(token, headers, body_size);
        }
    }
}
