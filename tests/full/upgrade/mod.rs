//! `make upgrade`: sidecars and filters of an earlier commit and of this one, together on one Redis: docs/upgrades.md.
//!
//! `SLUICEGATE_EARLIER` names the commit; `tests/full/upgrade/build-earlier` has built it.
//!
//! | module | for |
//! |---|---|
//! | `fleet` | a Redis, an Envoy and a sidecar, each part of which can be replaced by the other version's |
//! | `order` | sidecars first, filters afterwards; and what happens the other way round |
//! | `rollback` | back to the earlier version, with the counts of the later one |

mod fleet;
mod order;
mod rollback;
