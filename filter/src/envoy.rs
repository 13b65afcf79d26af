//! All calls to Envoy. None panics, whatever Envoy returns: a panic ends the VM for all later requests of the worker.
//!
//! They are imported directly. The `proxy-wasm` crate's `hostcalls` panic on statuses that they do not expect, and Envoy
//! returns such a status, `InternalFailure`, from any call that `capability_restriction_config` withholds. Never import
//! `proxy_http_call`: the crate's dispatcher panics on the response to a callout that it did not make. Its
//! `dispatch_http_call` expects every status that Envoy returns for it: `Ok`, `BadArgument` and `InternalFailure`.
#![expect(unsafe_code, reason = "the ABI passes pointers")]

use std::cell::RefCell;
use std::time::Duration;

use proxy_wasm::types::{BufferType, LogLevel, MapType, MetricType, Status, StreamType};
use sluicegate_rules::{COUNTERS_PREFIX, Headers, Reply, VerdictError};
use sluicegate_vm::{Host, Level};

const OK: u32 = 0;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_continue_stream(stream: StreamType) -> u32;
    fn proxy_define_metric(kind: MetricType, name: *const u8, size: usize, id: *mut u32) -> u32;
    fn proxy_dequeue_shared_queue(queue: u32, bytes: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_enqueue_shared_queue(queue: u32, bytes: *const u8, size: usize) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: BufferType,
        start: usize,
        most: usize,
        bytes: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: MapType, bytes: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: MapType,
        name: *const u8,
        name_size: usize,
        bytes: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        bytes: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_increment_metric(id: u32, count: i64) -> u32;
    fn proxy_log(level: LogLevel, text: *const u8, size: usize) -> u32;
    fn proxy_register_shared_queue(name: *const u8, size: usize, queue: *mut u32) -> u32;
    fn proxy_replace_header_map_value(
        map: MapType,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
}

// WASI functions that Envoy provides and the crate lacks.
#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    fn environ_get(entries: *mut *mut u8, text: *mut u8) -> u32;
    fn environ_sizes_get(count: *mut usize, size: *mut usize) -> u32;
    fn random_get(bytes: *mut u8, size: usize) -> u32;
}

/// The bytes that a call returns, or nothing if it fails or there are none.
///
/// # Safety
/// `call` makes one call to Envoy, which gets both out-pointers.
unsafe fn received(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let (mut bytes, mut size) = (std::ptr::null_mut(), 0);
    let status = call(&raw mut bytes, &raw mut size);
    (status == OK && !bytes.is_null()).then(|| {
        // SAFETY: Envoy let the crate allocate exactly this size in this VM, has written all of it, and passes ownership.
        unsafe { Vec::from_raw_parts(bytes, size, size) }
    })
}

fn buffer(buffer: BufferType, most: usize) -> Option<Vec<u8>> {
    // SAFETY: one call, which gets both.
    unsafe { received(|bytes, size| proxy_get_buffer_bytes(buffer, 0, most, bytes, size)) }
}

thread_local! {
    /// The ids of the counters that any configuration of the VM has defined: Envoy allots a new one at every definition, even
    /// of a known name. By name, in order: a map would make the VM's code larger.
    static COUNTERS: RefCell<Vec<(String, u32)>> = const { RefCell::new(Vec::new()) };
}

/// WASI's system clock (0) or its monotonic one (1); 0 if it cannot be read.
fn nanoseconds(clock: u32) -> u64 {
    let mut nanoseconds = 0;
    // SAFETY: `nanoseconds` is writable.
    let _ = unsafe { clock_time_get(clock, 1, &raw mut nanoseconds) };
    nanoseconds
}

/// The id of a counter, which is defined if it is not known.
fn counter(name: &str) -> Option<u32> {
    COUNTERS.with_borrow_mut(|known| {
        let index = match known.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
            Ok(index) => return known.get(index).map(|(_, id)| *id),
            Err(index) => index,
        };
        let full = format!("{COUNTERS_PREFIX}{name}");
        let mut id = 0;
        // SAFETY: the name is readable for its length, and `id` is writable.
        let status = unsafe {
            proxy_define_metric(MetricType::Counter, full.as_ptr(), full.len(), &raw mut id)
        };
        (status == OK).then(|| {
            known.insert(index, (name.to_owned(), id));
            id
        })
    })
}

/// Envoy, around this VM.
#[derive(Clone, Copy)]
pub struct Envoy;

impl Host for Envoy {
    fn plugin_configuration(&self, size: usize) -> Option<Vec<u8>> {
        buffer(BufferType::PluginConfiguration, size)
    }

    fn environment(&self, name: &str) -> Option<String> {
        let (mut count, mut size) = (0, 0);
        // SAFETY: both are writable.
        let _ = unsafe { environ_sizes_get(&raw mut count, &raw mut size) };
        let (mut entries, mut text) = (vec![std::ptr::null_mut(); count], vec![0; size]);
        // SAFETY: both have room for as many entries and bytes as Envoy has just said.
        let _ = unsafe { environ_get(entries.as_mut_ptr(), text.as_mut_ptr()) };
        text.split(|byte| *byte == 0).find_map(|entry| {
            let entry = str::from_utf8(entry).ok()?;
            Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned())
        })
    }

    fn request_headers(&self) -> Headers {
        // SAFETY: one call, which gets both.
        let pairs = unsafe {
            received(|bytes, size| {
                proxy_get_header_map_pairs(MapType::HttpRequestHeaders, bytes, size)
            })
        };
        Headers::from_pairs(pairs.unwrap_or_default())
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let path = path.join("\0");
        // SAFETY: one call, which gets both; the path is readable for its length.
        unsafe {
            received(|bytes, size| proxy_get_property(path.as_ptr(), path.len(), bytes, size))
        }
    }

    fn set_filter_state(&self, text: &str) {
        // Envoy prefixes the name with `wasm.`.
        let path = "sluicegate";
        // SAFETY: both are readable for their lengths during the call, and Envoy copies them.
        let _ = unsafe { proxy_set_property(path.as_ptr(), path.len(), text.as_ptr(), text.len()) };
    }

    fn set_response_header(&self, name: &str, value: &str) {
        // SAFETY: both are readable for their lengths during the call, and Envoy copies them.
        let _ = unsafe {
            proxy_replace_header_map_value(
                MapType::HttpResponseHeaders,
                name.as_ptr(),
                name.len(),
                value.as_ptr(),
                value.len(),
            )
        };
    }

    fn resume(&self) {
        // SAFETY: a number only.
        let _ = unsafe { proxy_continue_stream(StreamType::HttpRequest) };
    }

    fn reply(&self, reply: &Reply) {
        let headers = reply.headers.to_pairs();
        let body = reply.body.as_slice();
        // Appears in Envoy's access log as response code details.
        let details = reply.details.as_ref();
        // SAFETY: all slices are readable for their lengths during the call, and Envoy copies them.
        // If the request no longer exists, no reply is needed.
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

    fn enter(&self, context: u32) -> bool {
        // SAFETY: a number only.
        unsafe { proxy_set_effective_context(context) == OK }
    }

    fn call(
        &self,
        cluster: &str,
        headers: Vec<(&str, &str)>,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<u32, VerdictError> {
        let call = proxy_wasm::hostcalls::dispatch_http_call;
        call(cluster, headers, body, Vec::new(), timeout).map_err(|status| match status {
            // The other reason would be a pseudo-header that is missing.
            Status::BadArgument => VerdictError::UnknownCluster(cluster.to_owned()),
            _ => VerdictError::Unreachable,
        })
    }

    fn callout_status(&self) -> Option<Vec<u8>> {
        let (map, name) = (MapType::HttpCallResponseHeaders, ":status");
        // SAFETY: one call, which gets both; the name is readable for its length.
        unsafe {
            received(|bytes, size| {
                proxy_get_header_map_value(map, name.as_ptr(), name.len(), bytes, size)
            })
        }
    }

    fn callout_body(&self, size: usize) -> Option<Vec<u8>> {
        buffer(BufferType::HttpCallResponseBody, size)
    }

    fn tick_every(&self, period: Duration) {
        let milliseconds = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: a number only.
        let _ = unsafe { proxy_set_tick_period_milliseconds(milliseconds) };
    }

    fn register_queue(&self, name: &str) -> Option<u32> {
        let mut queue = 0;
        // SAFETY: the name is readable for its length, and `queue` is writable.
        let status =
            unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) };
        (status == OK).then_some(queue)
    }

    fn enqueue(&self, queue: u32) -> bool {
        // SAFETY: an empty message, of which nothing is read.
        unsafe { proxy_enqueue_shared_queue(queue, std::ptr::null(), 0) == OK }
    }

    fn dequeue(&self, queue: u32) {
        // SAFETY: one call, which gets both.
        let _ = unsafe { received(|bytes, size| proxy_dequeue_shared_queue(queue, bytes, size)) };
    }

    fn define_counter(&self, name: &str) {
        counter(name);
    }

    fn add_to_counter(&self, name: &str, count: i64) {
        if let Some(id) = counter(name) {
            // SAFETY: numbers only.
            let _ = unsafe { proxy_increment_metric(id, count) };
        }
    }

    fn log(&self, level: Level, text: &str) {
        let level = match level {
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
            Level::Critical => LogLevel::Critical,
        };
        // SAFETY: the text is readable for its length.
        let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
    }

    fn monotonic_us(&self) -> u64 {
        // If the clock cannot be read, it stands still: nothing is late, held or spent.
        nanoseconds(1) / 1_000
    }

    fn system_s(&self) -> u64 {
        nanoseconds(0) / 1_000_000_000
    }

    fn random(&self) -> Option<String> {
        let mut random = [0; 16];
        // SAFETY: `random` is writable for its length.
        let status = unsafe { random_get(random.as_mut_ptr(), random.len()) };
        (status == OK).then(|| format!("{:032x}", u128::from_le_bytes(random)))
    }

    fn memory(&self) -> usize {
        #[cfg(target_arch = "wasm32")]
        let bytes = core::arch::wasm32::memory_size(0) << 16;
        #[cfg(not(target_arch = "wasm32"))]
        let bytes = 0;
        bytes
    }
}
