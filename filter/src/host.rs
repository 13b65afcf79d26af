//! Every call to Envoy stands here, and none can panic.
//!
//! A panic kills the VM for every later request of the worker, and the SDK's wrappers panic on a status that they do
//! not expect, some on bytes that are not UTF-8. So its functions are declared anew (`imports.rs`), and here
//! any status but *ok* is "not there".
#![expect(unsafe_code, reason = "the ABI passes pointers")]

use std::alloc::Layout;
use std::time::Duration;

use sluicegate_rules::{Headers, Reply, Request, Unusable, callout_outcome};

use crate::imports::*;

const OK: u32 = 0;

// proxy-wasm ABI: numbers of maps and buffers.
const REQUEST_HEADERS: u32 = 0;
const RESPONSE_HEADERS: u32 = 2;
const CALL_RESPONSE_HEADERS: u32 = 6;
const CALL_RESPONSE_BODY: u32 = 4;
const PLUGIN_CONFIGURATION: u32 = 7;
const REQUEST_STREAM: u32 = 0;
const COUNTER: u32 = 0;
/// Levels of Envoy's log.
pub const WARN: u32 = 3;
pub const CRITICAL: u32 = 5;

/// Memory for Envoy to write `size` bytes into, which `received` will own.
pub fn memory(size: usize) -> *mut u8 {
    match Layout::array::<u8>(size) {
        // SAFETY: the layout has a size.
        Ok(layout) if size > 0 => unsafe { std::alloc::alloc(layout) },
        _ => std::ptr::null_mut(),
    }
}

/// What Envoy has allocated in this VM for us, or `None` when it said anything but *ok*.
fn received(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut bytes = std::ptr::null_mut();
    let mut size = 0;
    if call(&raw mut bytes, &raw mut size) != OK {
        return None;
    }
    if bytes.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: Envoy got this memory from `memory`, of just this size, has written all of it, and gives it to us for good.
    Some(unsafe { Vec::from_raw_parts(bytes, size, size) })
}

fn map_value(map: u32, name: &str) -> Option<Vec<u8>> {
    // SAFETY: `name` is readable for its length during the call, and the out-pointers come from `received`.
    received(|value, size| unsafe {
        proxy_get_header_map_value(map, name.as_ptr(), name.len(), value, size)
    })
}

fn buffer(buffer: u32, most: usize) -> Option<Vec<u8>> {
    // SAFETY: the out-pointers come from `received`.
    received(|bytes, size| unsafe { proxy_get_buffer_bytes(buffer, 0, most, bytes, size) })
}

/// The request that the current call is about.
pub struct CurrentRequest {
    headers: Headers,
}

impl CurrentRequest {
    /// Reads all its headers, in one call.
    pub fn read() -> Self {
        // SAFETY: the out-pointers come from `received`.
        let pairs = received(|bytes, size| unsafe {
            proxy_get_header_map_pairs(REQUEST_HEADERS, bytes, size)
        });
        Self {
            headers: Headers::from_pairs(pairs.unwrap_or_default()),
        }
    }

    /// Takes headers out that only we may write.
    pub fn remove(&self, names: &[&str]) {
        for name in names {
            if self.headers.all(name).next().is_some() {
                // SAFETY: `name` is readable for its length during the call. What is not there need not be removed.
                let _ = unsafe {
                    proxy_remove_header_map_value(REQUEST_HEADERS, name.as_ptr(), name.len())
                };
            }
        }
    }
}

impl Request for CurrentRequest {
    fn headers(&self) -> &Headers {
        &self.headers
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        property(path)
    }
}

fn property(path: &[&str]) -> Option<Vec<u8>> {
    let path = path.join("\0");
    // SAFETY: `path` is readable for its length during the call, and the out-pointers come from `received`.
    received(|value, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), value, size) })
}

/// What the plugin is called in Envoy's configuration.
pub fn plugin_name() -> String {
    String::from_utf8_lossy(&property(&["plugin_name"]).unwrap_or_default()).into_owned()
}

/// A counter in Envoy's statistics, as `wasmcustom.NAME`.
#[derive(Clone, Copy)]
pub struct Counter(u32);

impl Counter {
    /// Makes it; one of the same name is the same counter.
    pub fn new(name: &str) -> Option<Self> {
        let mut id = 0;
        // SAFETY: `name` is readable for its length during the call, `id` is writable.
        let status =
            unsafe { proxy_define_metric(COUNTER, name.as_ptr(), name.len(), &raw mut id) };
        (status == OK).then_some(Self(id))
    }

    /// Adds to it.
    pub fn add(self, count: i64) {
        // SAFETY: no pointers. What cannot be counted is lost.
        let _ = unsafe { proxy_increment_metric(self.0, count) };
    }
}

/// Writes a header into the upstream's answer, in place of those of its name.
pub fn set_response_header(name: &str, value: &str) {
    // SAFETY: both are readable for their lengths during the call, and Envoy copies them.
    let _ = unsafe {
        proxy_replace_header_map_value(
            RESPONSE_HEADERS,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    };
}

/// The plugin's configuration as JSON.
pub fn plugin_configuration(size: usize) -> Option<Vec<u8>> {
    buffer(PLUGIN_CONFIGURATION, size)
}

/// The body of a callout's answer, or why there is none.
pub fn callout_body(headers: usize, body_size: usize) -> Result<Vec<u8>, Unusable> {
    // Without headers there is no answer, and asking for one would be answered by a trap.
    if headers == 0 {
        callout_outcome(None)?;
    }
    let status = map_value(CALL_RESPONSE_HEADERS, ":status").unwrap_or_default();
    callout_outcome(Some(&status))?;
    let body = if body_size == 0 {
        None
    } else {
        buffer(CALL_RESPONSE_BODY, body_size)
    };
    Ok(body.unwrap_or_default())
}

/// Posts `body` to a cluster; the answer comes to the root context, under the number returned. `None` when Envoy
/// refuses, for example because it has no such cluster.
pub fn post(cluster: &str, path: &str, body: &[u8], timeout: Duration) -> Option<u32> {
    let headers = pairs(|| {
        [
            (":method", "POST"),
            (":path", path),
            (":authority", cluster),
            ("content-type", "application/json"),
        ]
        .into_iter()
    });
    let trailers = pairs(std::iter::empty);
    let mut token = 0;
    // SAFETY: all slices are readable for their lengths during the call, Envoy copies them, and `token` is writable.
    let status = unsafe {
        proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            trailers.as_ptr(),
            trailers.len(),
            u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            &raw mut token,
        )
    };
    (status == OK).then_some(token)
}

/// Microseconds of a clock that does not step; it begins anywhere.
pub fn monotonic_us() -> u64 {
    const MONOTONIC: u32 = 1;
    let mut nanoseconds = 0;
    // SAFETY: `nanoseconds` is writable. A clock that cannot be read stands still: then nothing is ever late.
    let _ = unsafe { clock_time_get(MONOTONIC, 1, &raw mut nanoseconds) };
    nanoseconds / 1_000
}

/// A bell that a request can ring to have the root context called in the next turn of Envoy's event loop: a shared
/// queue, of which nothing but the ringing is used.
#[derive(Clone)]
pub struct Bell {
    name: String,
    queue: u32,
}

impl Bell {
    /// Hangs one up for the current root context. Queues cannot be taken down, so the name of one that is not used any
    /// more is used again: the queue then calls its new root.
    pub fn hang(used: Option<String>) -> Option<Self> {
        let name = match used {
            Some(name) => name,
            None => {
                // Queues are shared by all workers, and each has to have its own.
                let mut random = [0; 16];
                // SAFETY: `random` is writable for its length.
                if unsafe { random_get(random.as_mut_ptr(), random.len()) } != OK {
                    return None;
                }
                format!("sluicegate-{:032x}", u128::from_le_bytes(random))
            }
        };
        let mut queue = 0;
        // SAFETY: `name` is readable for its length during the call, `queue` is writable.
        let status =
            unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) };
        (status == OK).then_some(Self { name, queue })
    }

    /// Its name, to be used again when its root is gone.
    pub fn into_name(self) -> String {
        self.name
    }

    /// Whether the call is this bell's.
    pub const fn is(&self, queue: u32) -> bool {
        self.queue == queue
    }

    /// Rings; false when nobody will hear it.
    pub fn ring(&self) -> bool {
        // SAFETY: an empty message; its pointer is not read.
        (unsafe { proxy_enqueue_shared_queue(self.queue, self.name.as_ptr(), 0) }) == OK
    }

    /// Takes out what the rings have left, or the queue would grow.
    pub fn silence(&self) {
        // SAFETY: the out-pointers come from `received`.
        while received(|bytes, size| unsafe { proxy_dequeue_shared_queue(self.queue, bytes, size) })
            .is_some()
        {}
    }
}

/// Makes what follows be about another context. False when it is gone.
pub fn become_context(id: u32) -> bool {
    // SAFETY: no pointers.
    (unsafe { proxy_set_effective_context(id) }) == OK
}

/// Has the current root context called every so often.
pub fn tick_every(period: Duration) {
    let milliseconds = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: no pointers.
    let _ = unsafe { proxy_set_tick_period_milliseconds(milliseconds) };
}

/// Lets the current request go on.
pub fn resume() {
    // SAFETY: no pointers. A request that is gone cannot be resumed, and need not be.
    let _ = unsafe { proxy_continue_stream(REQUEST_STREAM) };
}

/// Answers the current request in the upstream's place.
pub fn reply(reply: &Reply) {
    let headers = pairs(|| reply.headers.iter());
    let body = reply.body.as_slice();
    // Appears in Envoy's access log as the response code's details.
    let details = reply.details.as_ref();
    // SAFETY: all slices are readable for their lengths during the call, and Envoy copies them.
    // A request that is gone cannot be answered, and need not be.
    let _ = unsafe {
        proxy_send_local_response(
            reply.status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            reply.grpc_status,
        )
    };
}

/// Headers as the ABI wants them: count, the sizes of all names and values, then each with a zero byte behind it.
fn pairs<'a, I: Iterator<Item = (&'a str, &'a str)>>(headers: impl Fn() -> I) -> Vec<u8> {
    const NUMBER: usize = 4;
    let number = |n: usize| u32::try_from(n).unwrap_or(0).to_le_bytes();
    let size = headers().map(|(name, value)| 2 * (NUMBER + 1) + name.len() + value.len());
    let mut bytes = Vec::with_capacity(NUMBER + size.sum::<usize>());
    bytes.extend(number(headers().count()));
    for (name, value) in headers() {
        bytes.extend(number(name.len()));
        bytes.extend(number(value.len()));
    }
    for (name, value) in headers() {
        for text in [name, value] {
            bytes.extend(text.as_bytes());
            bytes.push(0);
        }
    }
    bytes
}

/// Writes to Envoy's log.
pub fn log(level: u32, text: &str) {
    // SAFETY: `text` is readable for its length during the call. What cannot be logged is lost.
    let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
}
