//! Somebody's API: a search finds five videos, and every call is counted at its price.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use sluicegate_tests::upstream::serve;

/// What a search costs; any other call costs 1.
pub const SEARCH: u64 = 100;

/// The API, for as long as the test's runtime.
pub struct Api {
    pub port: u16,
    spent: Arc<AtomicU64>,
}

impl Api {
    /// Starts one.
    pub async fn start() -> Self {
        let spent = Arc::new(AtomicU64::new(0));
        let search = async |State(spent): State<Arc<AtomicU64>>| {
            spent.fetch_add(SEARCH, Ordering::Relaxed);
            "11 12 13 14 15\n"
        };
        let other = async |State(spent): State<Arc<AtomicU64>>| {
            spent.fetch_add(1, Ordering::Relaxed);
            "a page\n"
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "only the sidecar's routes are described"
        )]
        let routes = Router::new()
            .route("/search", get(search))
            .fallback(other)
            .with_state(Arc::clone(&spent));
        let port = serve(routes).await;
        Self { port, spent }
    }

    /// Its address.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What it would charge for all calls so far.
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }
}
