//! The engine, proved: model, Rust and Lua give the same answers, and the answers keep the promises.
//!
//! | module | for |
//! |---|---|
//! | `model.rs` | what the answers have to be, obviously right |
//! | `history.rs` | what may happen, generated |
//! | `lua.rs` | the script on a real Redis |
//! | `replay.rs` | one history through all three |
//! | `agreement.rs` | generated histories, an algorithm a test |

mod agreement;
mod history;
mod lua;
mod model;
mod replay;
