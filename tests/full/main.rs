//! Tests that need more than Envoy, Redis and a sidecar: other people's tools, a browser, Prometheus, the chart, another
//! operating system's services. `make test-full` runs them.
//!
//! | module | what belongs there |
//! |---|---|
//! | `certificates` | keys from a client's certificate |
//! | `collector` | a real OpenTelemetry Collector |
//! | `frameworks` | what web frameworks read, and the key that was counted |
//! | `host` | a host with systemd |
//! | `http` | the OpenAPI document, and clients in other languages |
//! | `imported` | policies imported from envoyproxy/ratelimit, beside it |
//! | `install` | `install.sh` with a release on this machine |
//! | `manifests` | the Helm chart |
//! | `observe` | a real Prometheus, alerts and dashboards |
//! | `page` | the live page in a real browser |
//! | `release` | the files of a release |
//! | `store_identity` | passwords that rotate, the minimal ACL, TLS to Redis |
//! | `traces` | the spans that a sidecar sends |
//! | `upgrade` | an earlier version beside this one |

mod certificates;
mod collector;
mod frameworks;
mod host;
mod http;
mod imported;
mod install;
mod manifests;
mod observe;
mod page;
mod release;
mod store_identity;
mod traces;
mod upgrade;
