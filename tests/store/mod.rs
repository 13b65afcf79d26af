//! The sidecar on Redis as operators run it. Every part is real: Redis, its sentinels, its Cluster; the kernel or a
//! proxy of the test causes the faults. Only a Redis that lies is a program of the tests.
//!
//! | module | what belongs there |
//! |---|---|
//! | `away` | a Redis that dies, pauses, stops answering, moves or becomes a replica |
//! | `causes` | the reported cause when it cannot be reached or used |
//! | `parts` | a store that serves some of the keys |
//! | `options` | every option of the policy's `store` |
//! | `leases` | units that a sidecar takes in advance: what ends them, and that none is lost |
//! | `sentinel` | finding the primary, and following a failover |
//! | `stopping` | a sidecar that stops |
//! | `lies` | a Redis that answers what no Redis answers |
//! | `cluster` | slots that move, calls that are cut |
//! | `more` | what only `make test-full` runs |

mod away;
mod causes;
mod cluster;
mod fake;
mod leases;
mod lies;
mod more;
mod options;
mod parts;
mod sentinel;
mod stopping;
