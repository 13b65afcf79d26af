//! The whole chain: clients, a real Envoy with the filter, a real sidecar, a real Redis.
//!
//! | module | what belongs there |
//! |---|---|
//! | `stall` | thousands of requests that wait while the sidecar stalls |
//! | `lifecycle` | clients that hang up, sidecars that break off, Envoys that reload or drain |
//! | `limits` | who is admitted and who is denied, and what they are told |
//! | `listeners` | what strangers do to the sidecar's own ports, and how it ends |
//! | `filter_chain` | other filters and options of Envoy's beside the filter |
//! | `fleet` | several Envoys with a sidecar each that share one Redis |
//! | `flood` | hostile requests by the thousand |
//! | `certificates` | denials that are given again without asking |
//! | `changes` | when clients feel what an operator changes |
//! | `cluster` | the sidecar on a Redis Cluster |
//! | `metrics` | the page of metrics, and Prometheus's own check of them |
//! | `socket` | the sidecar behind a Unix socket |
//! | `top` | who is being denied, by page and command |
//! | `edge` | the edge of the window, by algorithm |
//! | `outages` | what happens when a part is away, and when it is back |
//! | `store_down` | three sidecars whose Redis is broken in every way, under load |
//! | `hostile` | bytes that no client should send, answers that no sidecar should give |
//! | `reload` | the policy's replacement while requests are served |
//! | `apart` | rules and plugins that must not notice each other |
//! | `access_log` | what Envoy's access log says of requests that were not simply admitted |
//! | `replies` | what clients are told, by every kind of request |
//! | `matching` | every matcher, cost and tier |
//! | `memory` | what the process takes of the machine when keys are invented |
//! | `sources` | every source of a key, with what provides it in Envoy |
//! | `together` | one callout for all that wait, under churn |
//! | `wire` | `POST /v1/decide`, metrics and probes without Envoy |
//! | `operations` | peek, give-back and reset, the same on every store |
//! | `traces` | the spans that a sidecar sends |
//! | `receipts` | units given back: once, by whoever has the receipt, and in time |
//! | `redis_store` | the sidecar and its script on a real Redis |

mod access_log;
mod apart;
mod certificates;
mod changes;
mod cluster;
mod edge;
mod filter_chain;
mod fleet;
mod flood;
mod hostile;
mod lifecycle;
mod limits;
mod listeners;
mod matching;
mod memory;
mod metrics;
mod operations;
mod outages;
mod receipts;
mod redis_store;
mod reload;
mod replies;
mod socket;
mod sources;
mod stall;
mod store_down;
mod support;
mod together;
mod top;
mod traces;
mod wire;
