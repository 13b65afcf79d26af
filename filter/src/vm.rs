//! Every call from Envoy, by the proxy-wasm ABI 0.2.1: finds the context that it is about and hands it over.
//!
//! Envoy calls whatever callback a module exports, so this exports those that the filter needs and no others. The
//! SDK exports all of them; leaving it out made denials inside Envoy cheaper and the module smaller (`make bench`), and
//! took away its panics on what it does not expect. Here what is not known is ignored: a request then goes on as if
//! there were no filter.
//!
//! Envoy makes one call at a time into a VM and defers what its answers would cause until the call is over. The one
//! call that does come within another is for memory, which touches no context.
#![expect(
    unsafe_code,
    reason = "the ABI finds its functions by their unmangled names"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::host;
use crate::root::Root;
use crate::stream::{Action, Stream};

/// By Envoy's numbers of them.
type Contexts<T> = RefCell<BTreeMap<u32, T>>;

thread_local! {
    static ROOTS: Contexts<Root> = RefCell::default();
    static STREAMS: Contexts<Stream> = RefCell::default();
}

fn with_root<R>(id: u32, call: impl FnOnce(&mut Root) -> R) -> Option<R> {
    ROOTS.with(|roots| roots.try_borrow_mut().ok()?.get_mut(&id).map(call))
}

fn with_stream<R>(id: u32, call: impl FnOnce(&mut Stream) -> R) -> Option<R> {
    STREAMS.with(|streams| streams.try_borrow_mut().ok()?.get_mut(&id).map(call))
}

/// Says which ABI this is; never called.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Memory for what Envoy hands over: see `host::received`.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    host::memory(size)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_vm_start(_: u32, _: usize) -> u32 {
    // A panic is a defect and ends the VM; Envoy's log should say which.
    std::panic::set_hook(Box::new(|panic| {
        host::log(host::CRITICAL, &format!("sluicegate: {panic}"));
    }));
    1
}

/// A new plugin configuration if it has no `parent`, else a new request to its parent.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(id: u32, parent: u32) {
    if parent == 0 {
        ROOTS.with(|roots| {
            if let Ok(mut roots) = roots.try_borrow_mut() {
                roots.insert(id, Root::new(id));
            }
        });
    } else if let Some(stream) = with_root(parent, |root| root.stream(id)) {
        STREAMS.with(|streams| {
            if let Ok(mut streams) = streams.try_borrow_mut() {
                streams.insert(id, stream);
            }
        });
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(id: u32, size: usize) -> u32 {
    with_root(id, |root| root.configure(size))
        .unwrap_or(false)
        .into()
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(id: u32) {
    with_root(id, |root| root.tick());
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(id: u32, queue: u32) {
    with_root(id, |root| root.queue_ready(queue));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(id: u32, _: usize, _: u32) -> Action {
    with_stream(id, Stream::request_headers).unwrap_or(Action::Continue)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(id: u32, _: usize, _: u32) -> Action {
    with_stream(id, Stream::response_headers);
    Action::Continue
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(
    id: u32,
    token: u32,
    headers: usize,
    body_size: usize,
    _: usize,
) {
    with_root(id, |root| root.answered(token, headers, body_size));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(id: u32) {
    // Bound to names, so that what is dropped is dropped when no table is borrowed any more.
    let stream = STREAMS.with(|streams| streams.try_borrow_mut().ok()?.remove(&id));
    if stream.is_none() {
        let _root = ROOTS.with(|roots| roots.try_borrow_mut().ok()?.remove(&id));
    }
}
