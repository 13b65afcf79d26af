//! Batches waiting decisions into one store call.
//!
//! | file | for |
//! |---|---|
//! | `queue.rs` | the waiting callers, and the selection of the next call; pure |
//! | `worker.rs` | makes the calls, one at a time per lane, and answers the callers |
//! | `settles.rs` | gathers settles of receipts, in calls of their own |
//! | `shared.rs` | the store, and where failures are told |

mod queue;
mod settles;
mod shared;
mod worker;

pub use queue::Answer;
pub use worker::Batcher;
