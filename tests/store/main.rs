//! The sidecar's way to Redis as people run it. Every part is real: Redis, its sentinels, its Cluster, TLS; what stands
//! between is the kernel or a proxy of the test's own.
//!
//! | module | what belongs there |
//! |---|---|
//! | `away` | a Redis that dies, stands still, becomes silent, moves or becomes a replica |
//! | `causes` | what is told when it cannot be reached or used |
//! | `options` | every option of the policy's `store` |
//! | `identity` | passwords that rotate, the smallest ACL, TLS |
//! | `sentinel` | the primary found, and followed through a failover |
//! | `cluster` | slow links, cut links, failovers of a Cluster |

mod away;
mod causes;
mod cluster;
mod identity;
mod options;
mod sentinel;
mod support;
