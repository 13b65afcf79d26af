//! The live page on the admin port: its files, which are in this program, and the stream that keeps it up to date.
//! It is read-only. `server/access.rs` decides who may see it.
//!
//! | path | answers |
//! |---|---|
//! | `/` | the page |
//! | `/page/NAME` | its style, scripts and icon |
//! | `/page/stream` | server-sent events: `past` once, then a `snapshot` a second |

mod feed;
mod series;
mod snapshot;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response, Sse};

pub use feed::Feed;

/// Only the page's own files, nothing inline, no framing: even a limit's name that ended up in the markup could not
/// run as a script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const PAGE: &str = include_str!("page/page.html");

/// The page's files: name, type, text.
const FILES: [(&str, &str, &str); 9] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("theme.js", JAVASCRIPT, include_str!("page/theme.js")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("rates.js", JAVASCRIPT, include_str!("page/rates.js")),
    ("limits.js", JAVASCRIPT, include_str!("page/limits.js")),
    ("summary.js", JAVASCRIPT, include_str!("page/summary.js")),
    ("chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("icon.svg", SVG, include_str!("page/icon.svg")),
];

/// The page itself.
pub fn page() -> Response {
    file(HTML, PAGE)
}

/// One of the files that the page asks for, if there is one of this name.
pub fn named(name: &str) -> Option<Response> {
    let (_, kind, text) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some(file(kind, text))
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

/// The stream that keeps the page up to date; nothing if there are too many viewers.
pub fn stream(feed: &Feed) -> Option<Response> {
    let events = feed.subscribe()?;
    // Tells proxies, such as nginx, to pass each event on at once.
    Some(([("x-accel-buffering", "no")], Sse::new(events)).into_response())
}

#[cfg(test)]
mod tests {
    use crate::telemetry::labels::FailureKind;

    #[test]
    fn the_page_explains_every_kind_of_store_failure() {
        let page = include_str!("page/summary.js");
        let (_, explained) = page.split_once("const FAILED = {").unwrap();
        let (explained, _) = explained.split_once("};").unwrap();
        let lines = explained.lines();
        let lines = lines.filter_map(|line| line.trim().split_once(": "));
        let kinds = FailureKind::ALL.iter().map(|kind| kind.name());
        let explained: Vec<_> = lines.map(|(kind, _)| kind).collect();
        assert_eq!(explained, kinds.collect::<Vec<_>>());
    }
}
