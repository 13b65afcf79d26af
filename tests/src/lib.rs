//! Real parts for tests, demo and benches: each has its own ports and ends when it is dropped.
//!
//! | file | for |
//! |---|---|
//! | `process.rs` | a process that a test owns; free ports; waiting for a condition |
//! | `policy.rs` | policies of sidecars, configurations of filters |
//! | `name.rs` | a host name whose address a test changes |
//! | `namespaces.rs` | a network, mounts and processes of a test's own, which end with it |
//! | `redis.rs` | a Redis |
//! | `sentinel.rs` | a primary, a replica and their sentinels |
//! | `cluster.rs` | a Redis Cluster |
//! | `clock.rs`, `clock.c` | a Redis's clock that a test steps |
//! | `link.rs` | a link between two hosts, which is cut, slow or loses packets |
//! | `proxy.rs` | a TCP proxy that slows, swallows, cuts, half-closes and corrupts |
//! | `sidecar.rs` | a sidecar |
//! | `recorder.rs` | a fake sidecar that admits everything and records the questions |
//! | `document.rs` | documents of rules, as a sidecar sends them |
//! | `documents.rs` | files of this repository, and the commands in its documents |
//! | `pushing.rs` | rules for filters whose sidecar has none |
//! | `envoy.rs` | an Envoy with the filter |
//! | `listener.rs` | its listener in a file that it watches |
//! | `version.rs` | this sidecar and filter, or earlier ones |
//! | `token.rs` | signed tokens of clients |
//! | `upstream.rs` | what is behind Envoy |
//! | `edge.rs` | requests around a window's boundary, for a test and for README's picture |
//! | `noise.rs` | requests that no client should send |
//! | `wire.rs` | HTTP/1.1 by hand |
//! | `ask.rs` | decisions and outages, seen from a caller of the sidecar |
//! | `client.rs` | clients, one of them hostile |
//! | `marked.rs` | parts of documents that a run writes |

pub mod ask;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod document;
pub mod documents;
pub mod edge;
pub mod envoy;
pub mod link;
pub mod listener;
pub mod marked;
pub mod name;
pub mod namespaces;
pub mod noise;
pub mod policy;
pub mod process;
pub mod proxy;
pub mod pushing;
pub mod recorder;
pub mod redis;
pub mod redis_proxy;
pub mod sentinel;
pub mod sidecar;
pub mod token;
pub mod upstream;
pub mod version;
pub mod wire;
