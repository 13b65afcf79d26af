//! Listeners, HTTP, and how a sidecar runs and ends.
//!
//! | file | for |
//! |---|---|
//! | `listen.rs` | addresses and Unix sockets |
//! | `http.rs` | routes: decisions and admin |
//!
//! Runs a sidecar on listeners that the caller owns, until the caller says stop.

mod http;
pub mod listen;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;
use crate::decide::Service;
use crate::page::Feed;

pub use http::Access;
use listen::Listener;

/// How often what has expired is freed, and an idle store is looked after.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// Events that belong to one change of the policy file are taken together.
const SETTLE: Duration = Duration::from_millis(50);

/// Puts a changed policy in force whenever `changed` says that there may be one, for ever.
async fn reload(service: &Service, changed: &Notify) {
    loop {
        changed.notified().await;
        tokio::time::sleep(SETTLE).await;
        service.reload();
    }
}

/// Serves both faces, and looks at the policy file again when `changed` is notified, until `shutdown` completes;
/// then lets requests under way finish.
///
/// # Errors
/// A listener failed.
pub async fn run(
    service: Arc<Service>,
    decisions: Listener,
    admin: Listener,
    access: Access,
    changed: Arc<Notify>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let feed = Arc::new(Feed::new(clock::unix_ms()));
    let (stop, stopped) = tokio::sync::watch::channel(());
    let wait = |mut stopped: tokio::sync::watch::Receiver<()>| async move {
        // An error means that the sender is gone, which says the same.
        let _ = stopped.changed().await;
    };
    let router = http::decisions(Arc::clone(&service));
    let decisions = decisions.serve(router, wait(stopped.clone()));
    let admin = admin.serve(
        http::admin(Arc::clone(&service), Arc::clone(&feed), access),
        wait(stopped),
    );
    let shutdown = async {
        tokio::select! {
            () = shutdown => {}
            () = tick(&service) => {}
            () = reload(&service, &changed) => {}
            () = service.watch_store() => {}
            () = service.write_back() => {}
            () = feed.run(&service) => {}
        }
        drop(stop);
        // A viewer would never leave by itself, and hold the shutdown up.
        feed.end();
        service.leave().await;
        Ok(())
    };
    tokio::try_join!(decisions, admin, shutdown)?;
    Ok(())
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
