//! Proxy-wasm modules to compare with: the cost of the boundary between Envoy and a VM alone.

use std::fmt::Write;

/// Envoy calls everything in it, and it does nothing.
pub fn does_nothing() -> Vec<u8> {
    assemble("", "(i32.const 0)", "")
}

/// Denies every request with a constant reply like Sluicegate's. It reads the headers and the clock, as any filter must
/// that denies by a request's content, and decides nothing.
pub fn denies() -> Vec<u8> {
    const HEADERS: [(&str, &str); 8] = [
        ("retry-after", "9"),
        ("retry-after-ms", "8913"),
        ("ratelimit-policy", "\"per-key/10s\";q=1;w=10"),
        ("ratelimit", "\"per-key/10s\";r=0;t=9"),
        ("x-ratelimit-limit", "1"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "9"),
        ("content-type", "application/problem+json"),
    ];
    const BODY: &str = r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"limit `per-key` allows 1 per 10 seconds, this request costs 1, 0 are left; the same request is admitted in 9 seconds","limit":"per-key","retry_after_ms":8913}"#;
    let mut pairs = number(HEADERS.len());
    for (name, value) in HEADERS {
        pairs.extend(number(name.len()));
        pairs.extend(number(value.len()));
    }
    for text in HEADERS.iter().flat_map(|(name, value)| [name, value]) {
        pairs.extend(text.as_bytes());
        pairs.push(0);
    }
    let imports = r#"
  (import "env" "proxy_get_header_map_pairs" (func $pairs (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "env" "proxy_send_local_response"
    (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))"#;
    let data = format!(
        "(data (i32.const 4096) \"{}\") (data (i32.const 8192) \"{}\")",
        escaped(&pairs),
        escaped(BODY.as_bytes())
    );
    let denial = format!(
        "(drop (call $pairs (i32.const 0) (i32.const 64) (i32.const 68)))
         (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 80)))
         (drop (call $reply (i32.const 429) (i32.const 0) (i32.const 0)
           (i32.const 8192) (i32.const {}) (i32.const 4096) (i32.const {}) (i32.const -1)))
         (i32.const 1)",
        BODY.len(),
        pairs.len()
    );
    assemble(imports, &denial, &data)
}

fn assemble(imports: &str, on_request_headers: &str, data: &str) -> Vec<u8> {
    let text = format!(
        r#"(module {imports}
  (memory (export "memory") 2)
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 65536))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {on_request_headers})
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 0))
  (func (export "proxy_on_delete") (param i32))
  {data})"#
    );
    wat::parse_str(text).expect("a module")
}

fn number(n: usize) -> Vec<u8> {
    u32::try_from(n)
        .expect("a small number")
        .to_le_bytes()
        .to_vec()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\{byte:02x}");
        text
    })
}
