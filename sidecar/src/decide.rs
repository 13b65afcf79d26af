//! From a request to its verdicts.
//!
//! | file | for |
//! |---|---|
//! | `service.rs` | asks the store, counts, answers |
//! | `backend.rs` | the store behind its queue, with a fallback for outages |
//! | `plan.rs`, `plan/` | from checks to buckets, from outcomes to verdicts; pure, but for certificates and leases |
//! | `effective.rs` | checks with their effective windows; pure |
//! | `overrides.rs` | the overrides in force; pure |
//! | `losses.rs` | overrides that the store has lost, or has again; pure |
//! | `overridden.rs` | decisions made by overrides alone; pure |
//! | `buckets.rs`, `receipts.rs` | the buckets of a limit; receipts on the wire |
//! | `filters.rs` | the filters that get rules from here |
//! | `status.rs` | quota, window, remaining and reset of a verdict; pure |
//! | `denials.rs` | denial certificates: cached denials, for as long as they are exact |
//! | `leases.rs`, `leases/` | decisions from units that were taken in advance |
//! | `holds.rs` | the slots in use, for operators; pure |
//! | `in_flight.rs` | what is reserved and not settled yet, for operators; pure |
//! | `slots.rs` | how long slots are in use, and who waits for one |
//! | `unclaimed.rs` | frees slots that nobody was told of |
//! | `epoch.rs` | the policy in force and its counters; their replacement while requests are served |

mod backend;
mod buckets;
mod denials;
mod effective;
mod epoch;
mod filters;
mod holds;
mod in_flight;
mod leases;
mod losses;
mod overridden;
mod overrides;
mod plan;
mod receipts;
mod service;
mod slots;
mod status;
mod unclaimed;

pub use denials::Denials;
pub use epoch::{Epoch, PolicyHandle, digest};
pub use holds::read_vm;
pub use overrides::Overrides;
pub use plan::{Basis, Fallback, Plan};
pub use receipts::Receipt;
pub use service::Service;
