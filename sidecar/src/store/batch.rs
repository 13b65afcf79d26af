//! Batches waiting decisions into one store call.
//!
//! | file | for |
//! |---|---|
//! | `queue.rs` | the waiting callers, and the selection of the next call; pure |
//! | `worker.rs` | makes the calls, one at a time per lane, and answers the callers |

mod queue;
mod worker;

pub use queue::Answer;
pub use worker::Batcher;
