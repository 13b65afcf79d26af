//! Who may call what on the admin port.
//!
//! | the admin address | without a token | with a token |
//! |---|---|---|
//! | loopback or a Unix socket | all is open, to programs and to this server's own page | all but the probes needs it |
//! | any other | all but `/v1/reset` is open | all but the probes needs it |
//!
//! `/metrics` can be left open beside a token. On loopback a request is also to be *for* this host by name: the page of
//! a name that resolves to 127.0.0.1 would otherwise be of the same origin (DNS rebinding).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sluicegate_protocol::RESET_PATH;

use super::listen::Address;
use super::paths::{HEALTHZ_PATH, METRICS_PATH, READYZ_PATH};
use super::web_pages::{Refusal, called_json, host, same_origin};

const MISDIRECTED: Refusal = (
    StatusCode::MISDIRECTED_REQUEST,
    "the Host of this request is neither an address of this machine's loopback nor localhost: allow it with \
     `--allow-host NAME`\n",
);
const NO_RESETS: Refusal = (
    StatusCode::FORBIDDEN,
    "off loopback this needs `authorization: Bearer TOKEN`, and a sidecar started with that token \
     (SLUICEGATE_ADMIN_TOKEN)\n",
);
const NO_TOKEN: Refusal = (
    StatusCode::UNAUTHORIZED,
    "this needs `authorization: Bearer TOKEN`, or TOKEN as the password of Basic, with the sidecar's admin token\n",
);
/// A browser asks its user for it. The user's name may be anything.
const CHALLENGE: &str = "Basic realm=\"sluicegate\", Bearer";

/// Who may call what. By default as off loopback, without a token and under any name.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Shown by whoever may do more than probe.
    pub token: Option<Token>,
    /// Whether `/metrics` is open beside the token.
    pub open_metrics: bool,
    /// Whether only this machine can connect.
    local: bool,
    /// Hosts that requests may be for, where that is looked at.
    hosts: Option<Vec<String>>,
}

/// A secret; not shown in debug output.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Nothing of an empty one, which everybody would know.
    pub fn new(token: String) -> Option<Self> {
        (!token.is_empty()).then_some(Self(token))
    }

    fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '));
        match shown {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                self.is(token.trim().as_bytes())
            }
            Some((scheme, pair)) if scheme.eq_ignore_ascii_case("basic") => {
                let pair = BASE64_STANDARD.decode(pair.trim()).unwrap_or_default();
                let password = pair.splitn(2, |byte| *byte == b':').nth(1);
                password.is_some_and(|password| self.is(password))
            }
            _ => false,
        }
    }

    /// Every byte is looked at, so that the time taken does not tell how many were right.
    fn is(&self, shown: &[u8]) -> bool {
        let pairs = shown.iter().zip(self.0.as_bytes());
        let different = pairs.fold(0, |sum, (a, b)| sum | (a ^ b));
        shown.len() == self.0.len() && different == 0
    }
}

impl Access {
    /// To an admin port on `address`, which may also be called by these names.
    pub fn to(address: &Address, mut names: Vec<String>) -> Self {
        let local = address.is_local();
        let hosts = match address {
            // No browser speaks to it.
            Address::Unix(_) => None,
            // What it is called elsewhere is not known here, unless it was said.
            Address::Tcp(_) if !local && names.is_empty() => None,
            Address::Tcp(address) => {
                names.push(address.ip().to_string());
                Some(names)
            }
        };
        Self {
            token: None,
            open_metrics: false,
            local,
            hosts,
        }
    }

    fn admit(&self, request: &Request) -> Result<(), Refusal> {
        let host = host(request)?;
        let path = request.uri().path();
        // A kubelet asks by the pod's address.
        let probe = path == HEALTHZ_PATH || path == READYZ_PATH;
        if !probe && host.is_some_and(|host| !self.is_for_us(host)) {
            return Err(MISDIRECTED);
        }
        same_origin(request, host)?;
        match &self.token {
            Some(token) => {
                let open = probe || (self.open_metrics && path == METRICS_PATH);
                if !open && !token.is_shown_in(request.headers()) {
                    return Err(NO_TOKEN);
                }
            }
            None if !self.local && path == RESET_PATH => return Err(NO_RESETS),
            None => {}
        }
        called_json(request)
    }

    fn is_for_us(&self, host: &str) -> bool {
        let Some(names) = &self.hosts else {
            return true;
        };
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse::<IpAddr>().ok();
        name.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| address.is_loopback())
            || names.iter().any(|known| {
                known.eq_ignore_ascii_case(name)
                    || address.is_some_and(|address| known.parse() == Ok(address))
            })
    }
}

/// Lets pass what `access` admits.
pub(super) async fn guard(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match access.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal @ (StatusCode::UNAUTHORIZED, _)) => {
            let challenge = HeaderValue::from_static(CHALLENGE);
            ([(header::WWW_AUTHENTICATE, challenge)], refusal).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}
