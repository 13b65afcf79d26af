//! The filter: proxy-wasm, one VM per Envoy worker.
//!
//! | file | for |
//! |---|---|
//! | `envoy.rs` | all calls to Envoy; none panics |
//! | `contexts.rs` | Envoy's events, for what `filter/vm` does with them |

mod contexts;
mod envoy;

// In a module of its own, because the macro generates public items without documentation.
mod start {
    use sluicegate_vm::{Host, Level, Root};

    use crate::contexts::RootEvents;
    use crate::envoy::Envoy;

    proxy_wasm::main! {{
        // A panic is a defect and ends the VM; log it to Envoy.
        std::panic::set_hook(Box::new(|panic| {
            Envoy.log(Level::Critical, &format!("sluicegate: {panic}"));
        }));
        proxy_wasm::set_root_context(|id| Box::new(RootEvents(Root::new(Envoy, id))));
    }}
}
