//! Listeners, HTTP, limits on what comes in, and how a sidecar runs and ends.
//!
//! | file | for |
//! |---|---|
//! | `listen.rs` | addresses and Unix sockets |
//! | `accept.rs`, `connections.rs`, `connection.rs`, `arriving.rs` | connections: accepted, bounded in number, time and memory, ended |
//! | `phase.rs` | serving, draining, stopping |
//! | `decisions.rs`, `admin.rs`, `readiness.rs`, `body.rs` | the two HTTP faces |
//! | `openapi.rs` | the document made of the routes' descriptions |
//! | `refusal.rs` | errors, as problem details |
//! | `access.rs`, `web_pages.rs` | who may call what, and which requests some web page sent |
//!
//! What each port answers stands beside its handlers in `decisions.rs` and `admin.rs`; `docs/openapi.json` is made of it.
//!
//! Neither answers a request without a Host, or with several (RFC 9112, 3.2: 400). A line that ends with a bare LF is
//! read: RFC 9112, 2.2 lets a server do so, and hyper's parser cannot be configured to refuse it.
//!
//! Runs a sidecar on listeners that the caller owns, until the caller says stop.

mod accept;
mod access;
mod admin;
mod arriving;
mod body;
mod connection;
mod connections;
mod decisions;
pub mod listen;
pub mod openapi;
mod paths;
mod phase;
mod readiness;
mod refusal;
mod web_pages;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock;
use crate::decide::Service;
use crate::page::Feed;
use accept::Face;
pub use access::{Access, Token};
use admin::Admin;
use connection::Patience;
use listen::Listener;
use phase::Phase;
pub use phase::Stop;
use readiness::Readiness;

/// How often what has expired is freed, and an idle store is looked after.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// How long the ports wait for a start: nothing is decided before, and a connection waits more patiently than a decision.
const START_WITHIN: Duration = Duration::from_millis(250);

/// Events that belong to one change of the policy file are taken together.
const SETTLE: Duration = Duration::from_millis(50);

/// Connections to the admin port at once: the live page's viewers, Prometheus, probes, and room to spare.
pub const MAX_ADMIN_CONNECTIONS: usize = 128;

/// The filter's heads have about 200 bytes, and every connection may have one that is incomplete.
const MAX_DECISIONS_HEAD_BYTES: usize = 16 << 10;

/// A browser may send the cookies of every other service on this host.
const MAX_ADMIN_HEAD_BYTES: usize = 64 << 10;

/// Longer than the hour after which Envoy closes an unused connection by default: whoever closes first may cut off a
/// request that is on its way.
const DECISIONS_PATIENCE: Patience = Patience {
    head: Duration::from_secs(10),
    idle: Duration::from_mins(65),
};

/// Longer than Prometheus waits from one scrape to the next, usually. The live page's stream is never idle.
const ADMIN_PATIENCE: Patience = Patience {
    head: Duration::from_secs(10),
    idle: Duration::from_mins(2),
};

/// The two listeners.
#[derive(Debug)]
pub struct Listeners {
    /// For filters and workers.
    pub decisions: Listener,
    /// For Prometheus, probes and operators.
    pub admin: Listener,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who may call what on the admin port.
    pub access: Access,
    /// Connections for decisions at once.
    pub max_connections: usize,
    /// A store that does not answer makes the sidecar unready.
    pub ready_needs_store: bool,
    /// How long requests are still served after `/readyz` has begun to say that it is over.
    pub drain: Duration,
    /// After the drain, how long requests under way may take to finish.
    pub shutdown_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: Access::default(),
            max_connections: 4_096,
            ready_needs_store: false,
            drain: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(3),
        }
    }
}

/// Puts a changed policy in force whenever `changed` says that there may be one, for ever.
async fn reload(service: &Service, changed: &Notify) {
    loop {
        changed.notified().await;
        tokio::time::sleep(SETTLE).await;
        service.reload();
    }
}

/// Serves both faces, and looks at the policy file again when `changed` is notified, until `stop` completes; then
/// drains, and lets requests under way finish.
pub async fn run(
    service: Arc<Service>,
    listeners: Listeners,
    settings: Settings,
    changed: Arc<Notify>,
    stop: impl Future<Output = Stop>,
) {
    let feed = Arc::new(Feed::new(clock::unix_ms()));
    let (phase, phases) = watch::channel(Phase::Serving);
    let readiness = Readiness {
        phases: phases.clone(),
        needs_store: settings.ready_needs_store,
    };
    let decisions = Face {
        name: "decisions",
        router: decisions::router(Arc::clone(&service)),
        max_connections: settings.max_connections,
        patience: DECISIONS_PATIENCE,
        max_head_bytes: MAX_DECISIONS_HEAD_BYTES,
    };
    let admin = Face {
        name: "admin",
        router: admin::router(
            Admin {
                service: Arc::clone(&service),
                feed: Arc::clone(&feed),
                readiness,
            },
            settings.access,
        ),
        max_connections: MAX_ADMIN_CONNECTIONS,
        patience: ADMIN_PATIENCE,
        max_head_bytes: MAX_ADMIN_HEAD_BYTES,
    };
    service.wait_for_overrides(START_WITHIN).await;
    let within = settings.shutdown_timeout;
    let served = async {
        tokio::join!(
            accept::serve(listeners.decisions, decisions, phases.clone(), within),
            accept::serve(listeners.admin, admin, phases.clone(), within),
            async {
                phase::go(&phase, stop, settings.drain).await;
                // A viewer would never leave by itself, and hold the shutdown up.
                feed.end();
                // What is not said by then, the store forgets a few seconds later.
                let _ = tokio::time::timeout(within, service.leave()).await;
            }
        );
    };
    tokio::select! {
        () = served => {}
        () = tick(&service) => {}
        () = reload(&service, &changed) => {}
        () = service.watch_store() => {}
        () = service.watch_fleet() => {}
        () = service.write_back() => {}
        () = service.keep_leases() => {}
        () = feed.run(&service) => {}
    }
}

/// Does what has to be done every second, for ever.
async fn tick(service: &Service) {
    let mut ticks = tokio::time::interval(TICK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.tick().await;
    }
}
