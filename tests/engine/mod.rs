//! The engine, proved: model, Rust and Lua give the same answers, and the answers keep the promises.
//!
//! | module | for |
//! |---|---|
//! | `model.rs` | what the answers have to be, obviously right |
//! | `model_calendar.rs` | where calendar windows begin, for the model |
//! | `model_returns.rs` | what receipts of a token bucket return, for the model |
//! | `exact.rs` | that this is never too much, and nearly always all |
//! | `events.rs` | what may happen |
//! | `history.rs` | the same, generated |
//! | `lua.rs`, `own_redis.rs` | the script on a real Redis, and one that starts with it |
//! | `made.rs` | buckets, batches and generated cases, in a word each |
//! | `replay.rs` | one history through all three |
//! | `reached.rs` | the branches of the slow path that histories come to |
//! | `assembled.rs` | the script is what its parts in lua/ are assembled to |
//! | `agreement.rs` | generated histories, an algorithm a test |
//! | `kept.rs` | histories that once failed |
//! | `calendar.rs` | calendar windows: edges, other clocks, other rules |
//! | `calls.rs` | calls that run too late, keys that cannot be read, what a call reads and writes, logs larger than any history |
//! | `promises.rs` | the promises of docs/promises.md by name, on both stores |
//! | `policies.rs` | policies that change or differ, on both stores |
//! | `holds.rs` | units come back once, only by who took them, and to where they were taken, on both stores |
//! | `leases.rs` | leases in their last moment, and after a step of the clock |
//! | `overrides_script.rs`, `sidecars_script.rs` | the scripts of the overrides and of the register of sidecars by themselves |
//! | `expiry.rs` | keys end: after their last unit, and all of them |
//! | `slots.rs` | `concurrency`, with a model of its own |
//! | `sizes.rs` | the formula of docs/sizing.md beside MEMORY USAGE, and that a busy log keeps the blocks of one window |
//! | `write_back.rs` | what was admitted elsewhere, recorded afterwards |
//! | `settled.rs` | settlements of one bucket, in a word each |
//! | `mutations.rs` | plausible bugs of the script, each of which has to turn a test red |

mod agreement;
mod assembled;
mod calendar;
mod calls;
mod events;
mod exact;
mod expiry;
mod history;
mod holds;
mod kept;
mod leases;
mod lua;
mod made;
mod model;
mod model_calendar;
mod model_returns;
mod mutations;
mod overrides_script;
mod own_redis;
mod policies;
mod promises;
mod reached;
mod replay;
mod settled;
mod sidecars_script;
mod sizes;
mod slots;
mod write_back;
