//! One plugin configuration. A VM may have several at once: those of other listeners and routes, and the previous one
//! after a reload while its requests finish. So all state of a configuration belongs to its root context.

use std::rc::Rc;

use sluicegate_protocol::FilterInfo;
use sluicegate_rules::{CONFIGURATION_REFUSED, CONFIGURATION_UNBUILT, ConfigError, Pushed, config};

use crate::callouts::Callouts;
use crate::host::{Host, Level};
use crate::plugin::Plugin;
use crate::stream::Stream;

/// The root context; without a configuration until `on_configure` has accepted one.
pub struct Root<H: Host> {
    host: H,
    id: u32,
    callouts: Option<Rc<Callouts<H>>>,
    /// The settings that decide on requests if a configuration was not built for lack of memory: nothing else of it is kept.
    unbuilt: Option<Rc<Pushed>>,
}

impl<H: Host> Root<H> {
    /// For the root context with this id.
    pub const fn new(host: H, id: u32) -> Self {
        Self {
            host,
            id,
            callouts: None,
            unbuilt: None,
        }
    }

    /// Reads the configuration. If it is invalid, logs the reason and returns false. If the VM has no room for it, returns true
    /// and lets no request pass that the configuration would not let pass: the VM would end when an allocation fails, or Envoy
    /// pass everything.
    pub fn on_configure(&mut self, size: usize) -> bool {
        let configuration = self.host.plugin_configuration(size).unwrap_or_default();
        if let Some(why) = self.host.no_memory() {
            self.unbuilt = without_rules(&configuration).map(Rc::new);
            self.host.add_to_counter(CONFIGURATION_UNBUILT, 1);
            let line = format!(
                "sluicegate: configuration not built, its requests get 503 or what `until_rules.then` says: {why}"
            );
            self.host.log(Level::Critical, &line);
            return true;
        }
        match read(self.host.clone(), &configuration) {
            Ok(plugin) => {
                self.host.log(
                    Level::Info,
                    &format!("sluicegate {}: configured", plugin.announcement),
                );
                self.callouts = Some(Rc::new(Callouts::new(self.id, plugin)));
                true
            }
            Err(error) => {
                // VMs that run with an earlier configuration have the same counter, and so show this.
                self.host.add_to_counter(CONFIGURATION_REFUSED, 1);
                self.host.log(
                    Level::Critical,
                    &format!("sluicegate: configuration refused: {error}; docs/runbook.md#sluicegateconfigurationrefused"),
                );
                false
            }
        }
    }

    /// A queue has a message.
    pub fn on_queue_ready(&self, queue: u32) {
        if let Some(callouts) = &self.callouts {
            callouts.on_wakeup(queue);
        }
    }

    /// The timer has fired.
    pub fn on_tick(&self) {
        if let Some(callouts) = &self.callouts {
            callouts.on_tick();
        }
    }

    /// A callout is over: with so many headers, none if there is no response, and a body of this size.
    pub fn on_response(&self, token: u32, headers: usize, body_size: usize) {
        if let Some(callouts) = &self.callouts {
            callouts.on_response(token, headers, body_size);
        }
    }

    /// A request has come, whose context has this id.
    pub fn stream(&self, id: u32) -> Stream<H> {
        let (callouts, unbuilt) = (self.callouts.clone(), self.unbuilt.clone());
        Stream::new(self.host.clone(), id, callouts, unbuilt)
    }
}

fn read<H: Host>(host: H, configuration: &[u8]) -> Result<Plugin<H>, ConfigError> {
    let value = config::json(configuration)?;
    let announcement = FilterInfo {
        version: env!("CARGO_PKG_VERSION"),
        configuration: &config::fingerprint(&value),
    };
    let announcement = announcement.to_string();
    let (mut settings, pushed) = config::settings(value)?;
    config::read_pepper(&mut settings, |name| host.environment(name))?;
    Ok(Plugin::new(host, settings, pushed, announcement))
}

/// The settings that decide on requests without the rest of this configuration. `None` means 503: also if it cannot be read.
fn without_rules(configuration: &[u8]) -> Option<Pushed> {
    let value = config::json(configuration).ok()?;
    config::settings(value).ok().map(|(_, pushed)| pushed)
}
