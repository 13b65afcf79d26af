//! One store call for all that wait.
//!
//! | file | for |
//! |---|---|
//! | `queue.rs` | who waits, and what goes together in the next call; pure |
//! | `worker.rs` | makes the calls, one at a time for each lane, and answers |

mod queue;
mod worker;

pub use worker::Batcher;
