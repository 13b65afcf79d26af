//! libFuzzer with the targets of this package; `tests/fuzz/run` builds and starts it. `src/command.rs` has what it does.
#![no_main]
#![allow(
    unsafe_code,
    reason = "libFuzzer finds the function that it calls by its name"
)]

libfuzzer_sys::fuzz_target!(
    init: sluicegate_fuzz::command::prepare(),
    |data: &[u8]| sluicegate_fuzz::command::run(data)
);
