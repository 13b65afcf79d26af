//! The whole chain: clients, a real Envoy with the filter, a real sidecar, a real Redis.
//!
//! | module | what belongs there |
//! |---|---|
//! | `stall` | thousands of requests that wait for a stalled sidecar |
//! | `lifecycle` | clients that hang up, sidecars that disconnect, Envoys that reload |
//! | `late` | bursts, a slow sidecar and closed streams, which make verdicts late |
//! | `leased` | leases inside Envoy |
//! | `lent` | units that a fake sidecar lends the filter before it stalls or has another policy |
//! | `limits` | who is admitted, who is denied, and the response headers |
//! | `listeners` | hostile clients on the sidecar's own ports |
//! | `shutdown` | how a sidecar ends |
//! | `filter_chain` | the filter beside other filters and options of Envoy |
//! | `fleet` | several Envoys, each with a sidecar, that share one Redis |
//! | `flood` | hostile requests by the thousand |
//! | `certificates` | cached denials |
//! | `changes` | when clients see an operator's changes |
//! | `cluster` | the sidecar on a Redis Cluster |
//! | `consumers` | named consumers, from the command that adds them to the 429 |
//! | `metrics` | the metrics endpoint and its documentation, and promtool's check |
//! | `slots` | how many at once: every way in which a slot is freed |
//! | `slots_campaign` | ten thousand streams while everything dies: never more at the upstream than slots |
//! | `slots_long` | ten thousand requests of one client |
//! | `slots_again` | a request that slots alone deny, before a fake sidecar |
//! | `socket` | the sidecar behind a Unix socket |
//! | `holds` | whose slots are in use, and what became of them |
//! | `top` | who is being denied, by page and command |
//! | `tutorial` | docs/tutorial.md, from its first policy to the lifted limit |
//! | `trouble` | what a sidecar tells of trouble on our side |
//! | `documents` | the commands, policies and the 429 of README and other pages, the Lua filter of `docs/keys.md` |
//! | `from_a_clone` | what Docker's images and the targets of the Makefile find in a clone |
//! | `in_envoy` | denials that need no callout, and the labels of the filter's counters |
//! | `dev` | `sluicegate dev`, and that nothing is left of it |
//! | `render` | `sluicegate render`, pasted into an Envoy configuration that exists |
//! | `edge` | requests around a window's boundary, by algorithm |
//! | `outages` | behaviour while a part is down, and when it is back |
//! | `store_down` | what shares admitted without a store is counted, by every algorithm |
//! | `hostile` | answers that no sidecar should give, configurations that Envoy has to refuse |
//! | `withheld` | Envoys that withhold calls from the filter |
//! | `in_force` | what shows which configuration is in force, and why one is not |
//! | `pushed` | rules that the sidecar pushes: how they begin, change, come back, and fail |
//! | `rollouts` | changes of names that reach one sidecar of several after the other |
//! | `route_cleared` | rule sets that the route chooses, beside filters that clear it |
//! | `reload` | replacing the policy while requests are served |
//! | `apart` | rules and plugins that must not affect each other |
//! | `abuse` | clients who try to get around a limit, to make it costly, or to write where they must not |
//! | `access_log` | Envoy's access log for requests that were not simply admitted |
//! | `requested_quotas` | quotas that a verified claim or an earlier filter grants |
//! | `replies` | responses to clients, for every kind of request |
//! | `matching` | every matcher, cost and tier |
//! | `memory` | the sidecar's memory when clients invent keys |
//! | `sources` | every source of a key, with the part of Envoy that provides it |
//! | `together` | one callout for all waiting requests, while clients come and go |
//! | `wire` | `POST /v1/decide`, metrics and probes without Envoy |
//! | `operations` | peek, settle and reset, the same on every store |
//! | `overrides` | another quota, no limit or a block for single keys, on all sidecars |
//! | `receipts` | receipts that differ, and settles while a store hangs |
//! | `redis_store` | the sidecar and its script on a real Redis |

mod abuse;
mod access_log;
mod apart;
mod certificates;
mod changes;
mod cluster;
mod consumers;
mod dev;
mod documents;
mod edge;
mod filter_chain;
mod fleet;
mod flood;
mod from_a_clone;
mod holds;
mod hostile;
mod in_envoy;
mod in_force;
mod late;
mod leased;
mod lent;
mod lifecycle;
mod limits;
mod listeners;
mod matching;
mod memory;
mod metrics;
mod operations;
mod outages;
mod overrides;
mod pushed;
mod receipts;
mod recipes;
mod redis_store;
mod reload;
mod render;
mod replies;
mod requested_quotas;
mod rollouts;
mod route_cleared;
mod settled;
mod settled_long;
mod shutdown;
mod slots;
mod slots_again;
mod slots_campaign;
mod slots_long;
mod socket;
mod sources;
mod stall;
mod store_down;
mod support;
mod threads;
mod together;
mod top;
mod trouble;
mod tutorial;
mod wire;
mod withheld;
