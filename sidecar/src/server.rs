//! Runs a sidecar on listeners that the caller owns, until the caller says stop.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::http;
use crate::service::Service;

/// Serves both faces until `shutdown` completes, then lets requests under way finish.
///
/// # Errors
/// A listener failed.
pub async fn run(
    service: Service,
    decisions: TcpListener,
    admin: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let service = Arc::new(service);
    let (stop, stopped) = tokio::sync::watch::channel(());
    let wait = |mut stopped: tokio::sync::watch::Receiver<()>| async move {
        // An error means that the sender is gone, which says the same.
        let _ = stopped.changed().await;
    };
    let decisions = axum::serve(decisions, http::decisions(Arc::clone(&service)))
        .with_graceful_shutdown(wait(stopped.clone()));
    let admin = axum::serve(admin, http::admin(service)).with_graceful_shutdown(wait(stopped));
    let shutdown = async {
        shutdown.await;
        drop(stop);
        Ok(())
    };
    tokio::try_join!(decisions.into_future(), admin.into_future(), shutdown)?;
    Ok(())
}
