//! From a request to its verdicts.
//!
//! | file | for |
//! |---|---|
//! | `service.rs` | decides: reads, asks the store, counts, answers |
//! | `settle.rs` | the store, or what stands in for it |
//! | `plan.rs` | from checks to buckets, from outcomes to verdicts; pure |
//! | `receipts.rs` | what proves that units were taken |
//! | `instead.rs` | what decides where the store did not answer |
//! | `buckets.rs`, `receipts.rs` | the buckets of a limit; receipts on the wire |
//! | `denials.rs` | denial certificates: denied again without asking, while that is exact |
//! | `epoch.rs` | the policy in force and its counters; their replacement while requests are served |

mod buckets;
mod denials;
mod epoch;
mod instead;
mod plan;
mod receipts;
mod service;
mod settle;

pub use denials::Denials;
pub use epoch::{Epoch, Live, Reload};
pub use instead::Instead;
pub use plan::Plan;
pub use service::Service;
