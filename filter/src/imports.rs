//! What Envoy gives its filters, as the proxy-wasm ABI 0.2.1 declares it. Only `host.rs` calls it.
#![expect(unsafe_code, reason = "the ABI passes pointers")]

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    pub fn proxy_log(level: u32, text: *const u8, size: usize) -> u32;
    pub fn proxy_get_header_map_pairs(map: u32, bytes: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    pub fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    pub fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    pub fn proxy_increment_metric(id: u32, by: i64) -> u32;
    pub fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *mut *mut u8,
        value_size: *mut usize,
    ) -> u32;
    pub fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        value: *mut *mut u8,
        value_size: *mut usize,
    ) -> u32;
    pub fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        most: usize,
        bytes: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    pub fn proxy_register_shared_queue(name: *const u8, name_size: usize, id: *mut u32) -> u32;
    pub fn proxy_enqueue_shared_queue(id: u32, bytes: *const u8, size: usize) -> u32;
    pub fn proxy_dequeue_shared_queue(id: u32, bytes: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_set_effective_context(id: u32) -> u32;
    pub fn proxy_set_tick_period_milliseconds(milliseconds: u32) -> u32;
    pub fn proxy_http_call(
        cluster: *const u8,
        cluster_size: usize,
        headers: *const u8,
        headers_size: usize,
        body: *const u8,
        body_size: usize,
        trailers: *const u8,
        trailers_size: usize,
        timeout_ms: u32,
        token: *mut u32,
    ) -> u32;
    pub fn proxy_continue_stream(stream: u32) -> u32;
    pub fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
}

// Envoy gives its filters these two of WASI's.
#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    pub fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    pub fn random_get(bytes: *mut u8, size: usize) -> u32;
}
