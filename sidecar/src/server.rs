//! Listeners, HTTP, limits on what comes in, and how a sidecar runs and ends.
//!
//! | file | for |
//! |---|---|
//! | `listen.rs` | addresses and Unix sockets |
//! | `accept.rs`, `connections.rs`, `connection.rs`, `stream.rs` | connections: accepted, bounded in number and time, ended |
//! | `phase.rs` | serving, draining, stopping |
//! | `decisions.rs`, `admin.rs`, `readiness.rs`, `body.rs` | the two ports' endpoints |
//! | `describe.rs`, `openapi.rs` | what descriptions of routes share; the document made of them |
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
mod body;
mod connection;
mod connections;
mod decisions;
mod describe;
pub mod listen;
pub mod openapi;
mod phase;
mod readiness;
mod refusal;
mod stream;
mod web_pages;

use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::decide::Service;
use accept::Port;
pub use access::{Access, METRICS_PATH, READYZ_PATH, Token};
use admin::Admin;
use listen::Listener;
use phase::Phase;
pub use phase::Stop;
use readiness::Readiness;

/// How often expired entries are freed, and an idle store is called.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// How long the ports wait for a start: nothing is decided before, and a connection waits more patiently than a decision.
const START_WITHIN: Duration = Duration::from_millis(250);

/// How often the policy file is read.
const READ_POLICY_EVERY: Duration = Duration::from_millis(500);

/// The rest of a changed policy file may still be on its way.
const SETTLE: Duration = Duration::from_millis(50);

/// Connections to the admin port at once: live pages, Prometheus, probes, and room to spare.
pub const MAX_ADMIN_CONNECTIONS: usize = 128;

/// The filter's heads have about 200 bytes, and every connection may have one that is incomplete.
const MAX_DECISIONS_HEAD_BYTES: usize = 16 << 10;

/// A browser may send the cookies of every other service on this host.
const MAX_ADMIN_HEAD_BYTES: usize = 64 << 10;

/// Longer than the hour after which Envoy closes an unused connection by default: the side that closes first may cut off a
/// request that is on its way.
const DECISIONS_IDLE: Duration = Duration::from_mins(65);

/// Longer than Prometheus waits from one scrape to the next, usually.
const ADMIN_IDLE: Duration = Duration::from_mins(2);

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

/// Puts a changed policy in force, for ever. `reread` asks for a look at the file at once.
///
/// The file is read and not watched: the system does not report changes that another host or a layer of mounts makes, and a
/// node with many pods has no watches left.
async fn reload(service: &Service, reread: &Notify) {
    loop {
        tokio::select! {
            () = sleep(READ_POLICY_EVERY) => {
                let current = service.policy.current();
                if !service.policy.source.has_changed(&current.policy).await {
                    continue;
                }
            }
            () = reread.notified() => {}
        }
        sleep(SETTLE).await;
        service.reload();
    }
}

/// Serves both ports, and looks at the policy file at once when `reread` is notified, until `stop` completes; then
/// drains, and lets requests under way finish.
pub async fn run(
    service: Arc<Service>,
    listeners: Listeners,
    settings: Settings,
    reread: Arc<Notify>,
    stop: impl Future<Output = Stop>,
) {
    let (phase, phases) = watch::channel(Phase::Serving);
    let readiness = Readiness {
        phases: phases.clone(),
        needs_store: settings.ready_needs_store,
    };
    let decisions = Port {
        name: "decisions",
        router: decisions::router(Arc::clone(&service), get(openapi::serve)),
        max_connections: settings.max_connections,
        aside: false,
        idle: DECISIONS_IDLE,
        max_head_bytes: MAX_DECISIONS_HEAD_BYTES,
    };
    let admin = Port {
        name: "admin",
        router: admin::router(
            Admin {
                service: Arc::clone(&service),
                readiness,
            },
            settings.access,
            get(openapi::serve),
        ),
        max_connections: MAX_ADMIN_CONNECTIONS,
        aside: true,
        idle: ADMIN_IDLE,
        max_head_bytes: MAX_ADMIN_HEAD_BYTES,
    };
    service.filters.wait_at_most(settings.max_connections / 2);
    service.wait_for_overrides(START_WITHIN).await;
    let within = settings.shutdown_timeout;
    let stop = async {
        let stop = stop.await;
        service.filters.stop();
        stop
    };
    // What decides, and what that waits for, is on the runtime's threads. What may take longer than a millisecond is on this one.
    let mut deciding = JoinSet::new();
    let decisions = accept::serve(listeners.decisions, decisions, phases.clone(), within);
    deciding.spawn(decisions);
    let mut keeping = JoinSet::new();
    let keeper = Arc::clone(&service);
    keeping.spawn(async move { tokio::join!(keeper.keep_leases(), keeper.write_back()) });
    let served = async {
        tokio::join!(
            deciding.join_all(),
            accept::serve(listeners.admin, admin, phases.clone(), within),
            async {
                phase::go(&phase, stop, settings.drain).await;
                // If the store does not hear of it in time, its entry for this sidecar expires a few seconds later.
                let _ = timeout(within, service.leave()).await;
            }
        );
    };
    let aside = LocalSet::new();
    tokio::select! {
        () = aside.run_until(served) => {}
        () = tick(&service) => {}
        () = reload(&service, &reread) => {}
        () = service.watch_store() => {}
        () = service.watch_fleet() => {}
        _ = keeping.join_all() => {}
    }
}

/// Runs the work of every second, for ever.
async fn tick(service: &Service) {
    loop {
        service.tick().await;
        sleep(TICK_EVERY).await;
    }
}
