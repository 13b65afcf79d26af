//! The live page on the admin port: its files, which are in this program, and what it shows.
//! It is read-only. `server/access.rs` decides who may see it.
//!
//! | path | answers |
//! |---|---|
//! | `/` | the page |
//! | `/page/NAME` | its style, scripts and icon |
//! | `/page/snapshot` | what it shows, which it asks for every second |

mod snapshot;

use axum::http::header;
use axum::response::{IntoResponse, Response};

pub use snapshot::snapshot;

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
const FILES: [(&str, &str, &str); 7] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
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
    let headers = [
        (header::CONTENT_TYPE, kind),
        // Another version may run after the next restart.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
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
