//! Everything that a process gets from the machine by chance comes from the seed here: this program defines the two functions of
//! the C library by which Rust's standard library and crates ask for random bytes and for the time.
//!
//! So the keys of hash maps, ids, receipts, jitter and the order of `select!` are the seed's, and clocks that do not know tokio's
//! paused one follow it, in code that was written without a thought of simulations. No clock and no source of chance has to be
//! handed down through the product, and none can be forgotten. Only threads that run a world are affected.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

thread_local! {
    /// The state of the generator; 0 outside of a world.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// When the world began by tokio's clock, and what the wall clock was then.
    static BEGAN: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    /// How far the wall clock has stepped, in microseconds.
    static STEPPED_US: Cell<i64> = const { Cell::new(0) };
}

/// The monotonic clock when a world begins: there must be something before it.
const MONOTONIC_START: Duration = Duration::from_secs(1_000_000);

/// From now on this thread's chance comes from the seed.
pub fn seed(seed: u64) {
    RANDOM.set(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15) | 1);
}

/// From now on this thread's clocks follow tokio's; the wall clock begins here. To be called within the runtime.
pub fn begin(wall_us: u64) {
    STEPPED_US.set(0);
    BEGAN.set(Some((Instant::now(), Duration::from_micros(wall_us))));
}

/// This thread's clocks are the machine's again. To be called before the runtime ends.
pub fn end() {
    BEGAN.set(None);
}

/// Sets the wall clock forward, or back.
pub fn step_wall_us(by_us: i64) {
    STEPPED_US.set(STEPPED_US.get() + by_us);
}

/// Microseconds since the world began.
pub fn passed_us() -> u64 {
    let began = BEGAN.get();
    began.map_or(0, |(began, _)| began.elapsed().as_micros() as u64)
}

/// SplitMix64.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

// Asks the kernel, where this thread runs no world.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}
const SYS_CLOCK_GETTIME: i64 = if cfg!(target_arch = "x86_64") {
    228
} else {
    113
};
const SYS_GETRANDOM: i64 = if cfg!(target_arch = "x86_64") {
    318
} else {
    278
};

/// `struct timespec`.
#[repr(C)]
pub struct TimeSpec {
    seconds: i64,
    nanoseconds: i64,
}

/// # Safety
/// As the C library's: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
    let mut state = RANDOM.get();
    if state == 0 {
        // SAFETY: the caller's promise is the kernel's condition.
        return unsafe { syscall(SYS_GETRANDOM, buffer, length, flags) as isize };
    }
    // SAFETY: the caller promises so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    for chunk in bytes.chunks_mut(8) {
        let random = next(&mut state).to_ne_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    RANDOM.set(state.max(1));
    length as isize
}

/// # Safety
/// As the C library's: `time` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: i32, time: *mut TimeSpec) -> i32 {
    // Tokio asks for the machine's time only where its clock is not paused: taken out, so that it cannot ask itself.
    let Some((began, wall)) = BEGAN.take() else {
        // SAFETY: the caller's promise is the kernel's condition.
        return unsafe { syscall(SYS_CLOCK_GETTIME, i64::from(clock), time) as i32 };
    };
    let passed = began.elapsed();
    BEGAN.set(Some((began, wall)));
    const REALTIME: i32 = 0;
    let now = if clock == REALTIME {
        let wall_us = (wall + passed).as_micros() as u64;
        Duration::from_micros(wall_us.saturating_add_signed(STEPPED_US.get()))
    } else {
        MONOTONIC_START + passed
    };
    // SAFETY: the caller promises that it can be written.
    unsafe {
        *time = TimeSpec {
            seconds: now.as_secs() as i64,
            nanoseconds: i64::from(now.subsec_nanos()),
        };
    }
    0
}
