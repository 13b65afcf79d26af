//! Detects requests that a foreign web page made a browser send. A page can reach everything that its reader's browser can
//! reach, including loopback; the server must refuse what the page must not read or change.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, Version, header};
use axum::middleware::Next;
use axum::response::Response;

use sluicegate_protocol::Code;

use super::body::JSON;
use super::refusal::Refusal;

const SEC_FETCH_SITE: &str = "sec-fetch-site";
const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_DEST: &str = "sec-fetch-dest";

/// The error for a request from a foreign page, with the header that shows it.
pub(super) const fn foreign(field: &'static str) -> Refusal {
    Refusal::new(
        Code::FromWebPage,
        field,
        "a web page of another origin sent this request",
    )
}
pub(super) const fn from_a_page(field: &'static str) -> Refusal {
    Refusal::new(
        Code::FromWebPage,
        field,
        "a web page sent this request: this port is for programs only",
    )
}
pub(super) const NOT_JSON: Refusal = Refusal::new(
    Code::NotJson,
    "header.content-type",
    "send the body with `content-type: application/json` (curl: -H 'content-type: application/json')",
);
pub(super) const BAD_HOST: Refusal = Refusal::new(
    Code::BadHost,
    "header.host",
    "a request must have exactly one Host header (RFC 9112, 3.2)",
);
pub(super) const ORIGIN_FIELD: &str = "header.origin";
const SITE_FIELD: &str = "header.sec-fetch-site";
const ENCODING_FIELD: &str = "header.accept-encoding";

/// The host of a request, as sent; `None` if it has none and needs none.
///
/// # Errors
/// RFC 9112, 3.2 requires the request to be refused; hyper does not do so.
pub(super) fn host(request: &Request) -> Result<Option<&str>, Refusal> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => match request.uri().authority() {
            // RFC 9112, 3.2.2: it takes precedence over Host.
            Some(authority) => Ok(Some(authority.as_str())),
            None => host.to_str().map(Some).map_err(|_| BAD_HOST),
        },
        // HTTP/1.0 does not require a Host, and no browser sends HTTP/1.0.
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        _ => Err(BAD_HOST),
    }
}

/// Passes requests from this server's own page, pages that a person opens in a browser, and requests from programs.
///
/// # Errors
/// The request is from a page of another origin, or may be.
pub(super) fn same_origin(request: &Request, host: Option<&str>) -> Result<(), Refusal> {
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let ours = origin.to_str().ok().and_then(|origin| {
            let (_, authority) = origin.split_once("://")?;
            Some(authority.eq_ignore_ascii_case(host?))
        });
        if ours != Some(true) {
            return Err(foreign(ORIGIN_FIELD));
        }
    }
    let text = |name| headers.get(name).map(|value| value.as_bytes());
    let opened = request.method() == Method::GET
        && text(SEC_FETCH_MODE) == Some(b"navigate")
        && text(SEC_FETCH_DEST) == Some(b"document");
    match text(SEC_FETCH_SITE) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        // A link on another page: that page cannot read the answer.
        Some(_) if opened => Ok(()),
        Some(_) => Err(foreign(SITE_FIELD)),
    }
}

/// Passes changes only with a JSON `content-type`, which no form and no simple request of a page can send.
pub(super) async fn only_json(request: Request, next: Next) -> Result<Response, Refusal> {
    if media_type(request.headers()).as_deref() == Some(JSON) {
        Ok(next.run(request).await)
    } else {
        Err(NOT_JSON)
    }
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, _) = given.split_once(';').unwrap_or((given, ""));
    Some(kind.trim().to_ascii_lowercase())
}

/// Whether a browser may have sent it. Every browser sends this header, and the Fetch standard lets no script change it or
/// remove it; Envoy's callouts, curl and our own commands do not send it.
pub(super) fn may_be_of_a_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ACCEPT_ENCODING)
}

/// Refuses requests from any web page, for the port that none may call. Passes curl's default `content-type` and a missing one:
/// a form cannot send JSON with either, and a script's request has an Origin. But for a GET or HEAD: to its own host, which
/// may be a name that an attacker has resolve to this port (DNS rebinding), a page sends these without one.
pub(super) async fn not_from_a_page(request: Request, next: Next) -> Result<Response, Refusal> {
    host(&request)?;
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return Err(from_a_page(ORIGIN_FIELD));
    }
    if headers.contains_key(SEC_FETCH_SITE) {
        return Err(from_a_page(SITE_FIELD));
    }
    if request.method() != Method::POST && may_be_of_a_browser(headers) {
        return Err(from_a_page(ENCODING_FIELD));
    }
    match media_type(headers).as_deref() {
        Some("text/plain" | "multipart/form-data") => Err(NOT_JSON),
        _ => Ok(next.run(request).await),
    }
}
