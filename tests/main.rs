//! The core of the tests: real Redis servers, sidecars and Envoys, and the engine beside its model. `make test` runs these,
//! without the modules in the Makefile's `LONG`, which `make test-full` adds; `tests/full` needs more than these parts.
//!
//! | module | what belongs there |
//! |---|---|
//! | `engine` | the engine in Rust and in Lua, and their model |
//! | `store` | the sidecar on Redis as operators run it |
//! | `chain` | clients, Envoy with the filter, sidecar, Redis |
//! | `jobs` | what jobs do without Envoy |
//! | `chaos` | faults under load, judged by `tests/history` |

mod chain;
mod chaos;
mod engine;
mod jobs;
mod store;
