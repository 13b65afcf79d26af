//! All calls to Envoy. None panics, whatever Envoy returns: a panic ends the VM for all later requests of the worker.
//!
//! They are imported directly. The `proxy-wasm` crate's `hostcalls` panic on statuses that they do not expect, and Envoy
//! returns such a status, `InternalFailure`, from any call that `capability_restriction_config` withholds. Never import
//! `proxy_http_call`: the crate's dispatcher panics on the response to a callout that it did not make. Its
//! `dispatch_http_call` expects every status that Envoy returns for it: `Ok`, `BadArgument` and `InternalFailure`.
#![expect(unsafe_code, reason = "the ABI passes pointers")]

use std::cell::{Cell, RefCell};
use std::time::Duration;

pub use proxy_wasm::types::LogLevel as Level;
use proxy_wasm::types::{BufferType, MapType, MetricType, Status, StreamType};
use sluicegate_rules::{
    COUNTERS_PREFIX, Headers, Reply, Request, VerdictError, callout_outcome, is_sluicegate_reply,
};

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
    fn proxy_log(level: Level, text: *const u8, size: usize) -> u32;
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

// Two WASI functions that Envoy provides and the crate lacks.
#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
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

/// The request of the current call.
pub struct CurrentRequest {
    headers: Headers,
}

impl CurrentRequest {
    /// Reads all its headers, in one call.
    pub fn read() -> Self {
        // SAFETY: one call, which gets both.
        let pairs = unsafe {
            received(|bytes, size| {
                proxy_get_header_map_pairs(MapType::HttpRequestHeaders, bytes, size)
            })
        };
        Self {
            headers: Headers::from_pairs(pairs.unwrap_or_default()),
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
    // SAFETY: one call, which gets both; the path is readable for its length.
    unsafe { received(|bytes, size| proxy_get_property(path.as_ptr(), path.len(), bytes, size)) }
}

fn buffer(buffer: BufferType, most: usize) -> Option<Vec<u8>> {
    // SAFETY: one call, which gets both.
    unsafe { received(|bytes, size| proxy_get_buffer_bytes(buffer, 0, most, bytes, size)) }
}

/// The plugin's configuration, with a length of `size` bytes.
pub fn plugin_configuration(size: usize) -> Option<Vec<u8>> {
    buffer(BufferType::PluginConfiguration, size)
}

thread_local! {
    /// The ids of the counters that any configuration of the VM has defined: Envoy allots a new one at every definition, even
    /// of a known name. By name, in order: a map would make the VM's code larger.
    static COUNTERS: RefCell<Vec<(String, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Defines a counter in Envoy's statistics, `wasmcustom.sluicegate.NAME`, unless it is known. Returns its id.
pub fn define_counter(name: &str) -> Option<u32> {
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

/// Adds to a counter. If that fails, the count is lost.
pub fn add_to_counter(name: &str, count: i64) {
    if let Some(id) = define_counter(name) {
        // SAFETY: numbers only.
        let _ = unsafe { proxy_increment_metric(id, count) };
    }
}

/// Whether the current response is the reply of another Sluicegate filter in the chain, whose header fields must stay.
pub fn is_reply_of_another_filter() -> bool {
    let details = property(&["response", "code_details"]);
    details.is_some_and(|details| is_sluicegate_reply(&details))
}

/// Sets a text in the current stream's filter state, for the access log: `%FILTER_STATE(wasm.sluicegate:PLAIN)%`.
pub fn set_filter_state(text: &str) {
    // Envoy prefixes the name with `wasm.`.
    let path = "sluicegate";
    // SAFETY: both are readable for their lengths during the call, and Envoy copies them.
    let _ = unsafe { proxy_set_property(path.as_ptr(), path.len(), text.as_ptr(), text.len()) };
}

/// Sets a header of the response, replacing all headers with its name.
pub fn set_response_header(name: &str, value: &str) {
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

/// Longest answer that is read. The sidecar's answers have at most a few hundred bytes for each decision.
const MAX_ANSWER_BYTES: usize = sluicegate_protocol::MAX_BODY_BYTES;

/// The body of the response to a callout, or why there is none.
pub fn callout_body(headers: usize, body_size: usize) -> Result<Vec<u8>, VerdictError> {
    // Without headers there is no response.
    if headers == 0 {
        callout_outcome(None)?;
    }
    let (map, name) = (MapType::HttpCallResponseHeaders, ":status");
    // SAFETY: one call, which gets both; the name is readable for its length.
    let status = unsafe {
        received(|bytes, size| {
            proxy_get_header_map_value(map, name.as_ptr(), name.len(), bytes, size)
        })
    };
    callout_outcome(Some(&status.unwrap_or_default()))?;
    if body_size > MAX_ANSWER_BYTES {
        return Err(VerdictError::Body(format!(
            "it has {body_size} bytes, more than {MAX_ANSWER_BYTES}"
        )));
    }
    Ok(buffer(BufferType::HttpCallResponseBody, body_size).unwrap_or_default())
}

/// Sends a request to a cluster on behalf of the current root context, which receives the response with the returned token.
///
/// # Errors
/// Envoy refuses to send it.
pub fn call(
    cluster: &str,
    headers: Vec<(&str, &str)>,
    body: Option<&[u8]>,
    timeout: Duration,
) -> Result<u32, VerdictError> {
    proxy_wasm::hostcalls::dispatch_http_call(cluster, headers, body, Vec::new(), timeout).map_err(
        |status| match status {
            // The other reason would be a pseudo-header that is missing.
            Status::BadArgument => VerdictError::UnknownCluster(cluster.to_owned()),
            _ => VerdictError::Unreachable,
        },
    )
}

/// Posts decisions. With an announcement, the sidecar learns which filter and configuration ask. `spent` reports on
/// parts of leases.
///
/// # Errors
/// Envoy refuses to send them.
pub fn post(
    cluster: &str,
    announcement: Option<(&str, String)>,
    spent: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<u32, VerdictError> {
    let mut headers = vec![
        (":method", "POST"),
        (":path", sluicegate_protocol::DECIDE_PATH),
        (":authority", cluster),
        ("content-type", "application/json"),
        (sluicegate_protocol::LEASES_HEADER, spent),
        (sluicegate_protocol::UNKNOWN_HEADER, "named"),
    ];
    if let Some((text, rules)) = &announcement {
        headers.push((sluicegate_protocol::FILTER_HEADER, text));
        headers.push((sluicegate_protocol::RULES_HEADER, rules));
    }
    call(cluster, headers, Some(body), timeout)
}

/// The name of this Envoy: `node.id` of its bootstrap.
pub fn node() -> String {
    let id = property(&["xds", "node", "id"]).unwrap_or_default();
    // It goes into a header.
    String::from_utf8_lossy(&id).chars().take(256).collect()
}

/// Sixteen random bytes as hexadecimal digits.
pub fn random() -> Option<String> {
    let mut random = [0; 16];
    // SAFETY: `random` is writable for its length.
    let status = unsafe { random_get(random.as_mut_ptr(), random.len()) };
    (status == OK).then(|| format!("{:032x}", u128::from_le_bytes(random)))
}

/// Above this size of the VM nothing more is compiled: an allocation that fails would end the VM. It has at most 1 GiB in Envoy.
const MAX_MEMORY: usize = 512 << 20;

/// Why there is no memory to compile rules, if so. The VM's memory never becomes less.
pub fn no_memory() -> Option<String> {
    #[cfg(target_arch = "wasm32")]
    let bytes = core::arch::wasm32::memory_size(0) << 16;
    #[cfg(not(target_arch = "wasm32"))]
    let bytes = 0_usize;
    let mebibytes = bytes >> 20;
    (bytes > MAX_MEMORY).then(|| {
        format!("the VM has {mebibytes} MiB of memory already, which a restart of Envoy frees")
    })
}

/// Microseconds of a clock that does not step, from an arbitrary origin; 0 if it cannot be read.
pub fn monotonic_us() -> u64 {
    const MONOTONIC: u32 = 1;
    let mut nanoseconds = 0;
    // SAFETY: `nanoseconds` is writable. If the clock cannot be read, it stands still: nothing is late, held or spent.
    let _ = unsafe { clock_time_get(MONOTONIC, 1, &raw mut nanoseconds) };
    nanoseconds / 1_000
}

thread_local! {
    /// Names of queues whose configurations no longer exist: a shared queue cannot be unregistered, so without reuse each
    /// reload would leave another one behind.
    static UNUSED_QUEUES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Wakes a root context in the next turn of Envoy's event loop: a shared queue that is used for its notification only.
pub struct Wakeup {
    name: Option<String>,
    queue: Option<u32>,
    /// Messages sent and not removed yet.
    sent: Cell<usize>,
}

impl Wakeup {
    /// For the current root context. If Envoy provides no queue, the root's timer does the work later.
    pub fn register() -> Self {
        let name = UNUSED_QUEUES.with_borrow_mut(Vec::pop).or_else(|| {
            // All workers share the queues by name, and each needs its own.
            random().map(|random| format!("sluicegate-{random}"))
        });
        // Registering a name again moves its notifications to this root context.
        let queue = name.as_deref().and_then(|name| {
            let mut queue = 0;
            // SAFETY: the name is readable for its length, and `queue` is writable.
            let status =
                unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) };
            (status == OK).then_some(queue)
        });
        Self {
            name,
            queue,
            sent: Cell::new(0),
        }
    }

    /// Whether the notification of this queue belongs to this wake-up.
    pub fn is(&self, queue: u32) -> bool {
        self.queue == Some(queue)
    }

    /// Sends the notification.
    pub fn notify(&self) {
        // SAFETY: an empty message, of which nothing is read.
        let send = |queue| unsafe { proxy_enqueue_shared_queue(queue, std::ptr::null(), 0) };
        if self.queue.map(send) == Some(OK) {
            self.sent.set(self.sent.get().saturating_add(1));
        }
    }

    /// Removes the messages of past notifications, so that the queue does not grow.
    pub fn drain(&self) {
        // By count, because `received` does not distinguish an empty message from an empty queue.
        for queue in std::iter::repeat_n(self.queue, self.sent.take()).flatten() {
            // SAFETY: one call, which gets both.
            let _ =
                unsafe { received(|bytes, size| proxy_dequeue_shared_queue(queue, bytes, size)) };
        }
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        UNUSED_QUEUES.with_borrow_mut(|unused| unused.extend(self.name.take()));
    }
}

/// Runs an action in another context, if that still exists, and restores the current one.
pub fn in_context(id: u32, current: u32, action: impl FnOnce()) {
    // SAFETY: a number only.
    let enter = |context| unsafe { proxy_set_effective_context(context) };
    if enter(id) == OK {
        action();
    }
    let _ = enter(current);
}

/// Sets the timer's period for the current root context.
pub fn tick_every(period: Duration) {
    let milliseconds = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: a number only.
    let _ = unsafe { proxy_set_tick_period_milliseconds(milliseconds) };
}

/// Resumes the current request.
pub fn resume() {
    // SAFETY: a number only.
    let _ = unsafe { proxy_continue_stream(StreamType::HttpRequest) };
}

/// Sends a local reply to the current request.
pub fn reply(reply: &Reply) {
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

/// Writes to Envoy's log.
pub fn log(level: Level, text: &str) {
    // SAFETY: the text is readable for its length.
    let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
}
