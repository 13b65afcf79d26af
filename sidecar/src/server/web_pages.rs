//! What tells a request that some web page had a browser send from one that its sender meant. A page can reach whatever
//! its reader's browser can reach, loopback included; only what it may read or change there is for the server to refuse.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body::JSON;

/// Why a request is not answered.
pub(super) type Refusal = (StatusCode, &'static str);

const SEC_FETCH_SITE: &str = "sec-fetch-site";
const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_DEST: &str = "sec-fetch-dest";

const FOREIGN: Refusal = (
    StatusCode::FORBIDDEN,
    "a page of another origin sent this (headers Origin and Sec-Fetch-Site): it is not answered\n",
);
const A_PAGE: Refusal = (
    StatusCode::FORBIDDEN,
    "a web page sent this (header Origin or Sec-Fetch-Site): decisions are for programs only\n",
);
const NOT_JSON: Refusal = (
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "the body is to be JSON and to be called so: content-type: application/json (with curl: -H 'content-type: application/json')\n",
);
const NO_HOST: Refusal = (
    StatusCode::BAD_REQUEST,
    "a request has one Host header: see RFC 9112, 3.2\n",
);

/// The host that a request is for, as it was sent; nothing where it has none and needs none.
///
/// # Errors
/// hyper leaves it to its users to refuse what RFC 9112, 3.2 wants refused.
pub(super) fn host(request: &Request) -> Result<Option<&str>, Refusal> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => match request.uri().authority() {
            // RFC 9112, 3.2.2: it goes before Host.
            Some(authority) => Ok(Some(authority.as_str())),
            None => host.to_str().map(Some).map_err(|_| NO_HOST),
        },
        // Before HTTP/1.1 there need not be one, and browsers send nothing so old.
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        _ => Err(NO_HOST),
    }
}

/// Lets pass what this server's own page sends, what a person opens in a browser, and what is not from a browser.
///
/// # Errors
/// It is from a page of another origin, or could be.
pub(super) fn same_origin(request: &Request, host: Option<&str>) -> Result<(), Refusal> {
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let ours = origin.to_str().ok().and_then(|origin| {
            let (_, authority) = origin.split_once("://")?;
            Some(authority.eq_ignore_ascii_case(host?))
        });
        if ours != Some(true) {
            return Err(FOREIGN);
        }
    }
    let text = |name| headers.get(name).map(|value| value.as_bytes());
    let opened = request.method() == Method::GET
        && text(SEC_FETCH_MODE) == Some(b"navigate")
        && text(SEC_FETCH_DEST) == Some(b"document");
    match text(SEC_FETCH_SITE) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        // A link in somebody's wiki: the page that has it sees nothing of the answer.
        Some(_) if opened => Ok(()),
        Some(_) => Err(FOREIGN),
    }
}

/// Lets a change pass if its body is called JSON, which no form and no simple request of a page can do.
///
/// # Errors
/// It is called something else, or nothing.
pub(super) fn called_json(request: &Request) -> Result<(), Refusal> {
    if request.method() == Method::POST && media_type(request.headers()) != Some(JSON.to_owned()) {
        return Err(NOT_JSON);
    }
    Ok(())
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, _) = given.split_once(';').unwrap_or((given, ""));
    Some(kind.trim().to_ascii_lowercase())
}

/// For the port that no page has business with. What curl calls a body by default is let pass, and so is a body that is
/// not called anything: a form cannot send JSON that way, and a script's request has an Origin.
fn from_no_page(request: &Request) -> Result<(), Refusal> {
    host(request)?;
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE) {
        return Err(A_PAGE);
    }
    match media_type(headers).as_deref() {
        Some("text/plain" | "multipart/form-data") => Err(NOT_JSON),
        _ => Ok(()),
    }
}

/// Refuses what comes from a page, whoever's it is.
pub(super) async fn not_from_a_page(request: Request, next: Next) -> Response {
    match from_no_page(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}
