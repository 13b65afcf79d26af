//! The live page on the admin port: its files, which are in this program, and the stream that keeps it up to date.
//! It only shows. Who may see it is decided in `server/access.rs`.
//!
//! | path | answers |
//! |---|---|
//! | `/` | the page |
//! | `/page/NAME` | its style, scripts and icon |
//! | `/page/stream` | server-sent events: `past` once, then a `snapshot` a second |

mod feed;
mod snapshot;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;

pub use feed::Feed;

/// Nothing from anywhere else, nothing inline, in nobody's frame: a limit's name that found its way into the markup
/// could still do nothing.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const PAGE: &str = include_str!("page/page.html");

/// What the page asks for: name, type, text.
const FILES: [(&str, &str, &str); 8] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("theme.js", JAVASCRIPT, include_str!("page/theme.js")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("rates.js", JAVASCRIPT, include_str!("page/rates.js")),
    ("say.js", JAVASCRIPT, include_str!("page/say.js")),
    ("chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("icon.svg", SVG, include_str!("page/icon.svg")),
];

/// The routes of the page, and of the stream that `feed` fills.
pub fn routes(feed: Arc<Feed>) -> Router {
    Router::new()
        .route("/", get(async || file(HTML, PAGE)))
        .route("/page/stream", get(stream))
        .route("/page/{name}", get(named))
        .with_state(feed)
}

async fn named(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => file(kind, text),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        // Another version may run after the next restart.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(CONTENT_SECURITY_POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
    ];
    (headers, text).into_response()
}

async fn stream(State(feed): State<Arc<Feed>>) -> Response {
    match feed.view() {
        // Proxies that know this header pass each event on as it comes.
        Some(events) => ([("x-accel-buffering", "no")], Sse::new(events)).into_response(),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "as many viewers as may look at once are looking\n",
        )
            .into_response(),
    }
}
