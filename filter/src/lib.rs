//! The filter: proxy-wasm, one VM per Envoy worker.
//!
//! | file | for |
//! |---|---|
//! | `root.rs` | one per plugin configuration: reads it, and passes on Envoy's events |
//! | `stream.rs` | one per request: derives the question, waits, and applies the verdict |
//! | `waiter.rs` | a request that waits for its verdict |
//! | `callouts.rs` | the queue of waiting requests, callouts in flight, wake-ups and delivery |
//! | `rule_updates.rs` | requests for the rules that the sidecar pushes, and their compilation |
//! | `plugin.rs` | state that all requests of a configuration share: rules, cached denials, leases, counters |
//! | `host.rs` | all calls to Envoy; none panics |
//!
//! All decisions are made in `rules/`, which does not depend on Envoy.

mod callouts;
mod host;
mod plugin;
mod root;
mod rule_updates;
mod stream;
mod waiter;

// In a module of its own, because the macro generates public items without documentation.
mod start {
    use crate::{host, root};

    proxy_wasm::main! {{
        // A panic is a defect and ends the VM; log it to Envoy.
        std::panic::set_hook(Box::new(|panic| {
            host::log(host::Level::Critical, &format!("sluicegate: {panic}"));
        }));
        proxy_wasm::set_root_context(|id| Box::new(root::Root::new(id)));
    }}
}
