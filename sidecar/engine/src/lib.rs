//! What every store is asked and answers, and the store that needs no Redis.
//!
//! | file | for |
//! |---|---|
//! | `batch.rs` | the question: buckets, decisions over them; the answer: outcomes |

mod batch;

pub use batch::{Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome, Take};
