//! Who may call what on the admin port.
//!
//! | the admin address | without a token | with a token |
//! |---|---|---|
//! | loopback or a Unix socket | everything is open to programs and to this server's own page | everything except the probes requires it |
//! | any other | everything except `/v1/peek`, `/v1/reset` and `/v1/overrides` is open | everything except the probes requires it |
//!
//! `/metrics` can be open despite a token. On loopback, the Host of a request must also name this host: otherwise a web
//! page whose name resolves to 127.0.0.1 would have the same origin (DNS rebinding). A probe may name any IP address: a
//! kubelet uses the pod's, and rebinding needs a name. Off loopback, this host's names are unknown: without a token, a
//! browser must name an IP address, localhost or a name that `--allow-host` lists, and programs may use any name.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sluicegate_protocol::{Code, OVERRIDES_PATH, PEEK_PATH, RESET_PATH};
use subtle::ConstantTimeEq;

use super::listen::Address;
use super::refusal::Refusal;
use super::web_pages::{host, may_be_of_a_browser, same_origin};

pub(super) const MISDIRECTED: Refusal = Refusal::new(
    Code::WrongHost,
    "header.host",
    "the Host of this request is neither localhost nor an address of this sidecar: allow it with `--allow-host NAME`",
);
pub(super) const NEEDS_TOKEN: Refusal = Refusal::new(
    Code::TokenRequired,
    "header.authorization",
    "off loopback this needs `authorization: Bearer TOKEN`, and a sidecar that was started with that token \
     (SLUICEGATE_ADMIN_TOKEN)",
);
pub(super) const NO_TOKEN: Refusal = Refusal::new(
    Code::TokenRequired,
    "header.authorization",
    "the admin token is required: `authorization: Bearer TOKEN`, or TOKEN as the password of Basic authentication",
)
.with_status(StatusCode::UNAUTHORIZED);
/// Makes a browser ask for the token. Any user name is accepted.
const CHALLENGE: &str = "Basic realm=\"sluicegate\", Bearer";

/// Whether the process serves.
pub(super) const HEALTHZ_PATH: &str = "/healthz";
/// Whether clients should send requests to it.
pub const READYZ_PATH: &str = "/readyz";
/// For Prometheus.
pub const METRICS_PATH: &str = "/metrics";

/// Who may call what. The default is that of an address other than loopback, without a token, with any Host.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Required for everything except probes.
    pub token: Option<Token>,
    /// Whether `/metrics` is open despite the token.
    pub open_metrics: bool,
    /// Whether only this machine can connect.
    local: bool,
    /// Allowed Hosts; `None`: any.
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
    /// `None` for an empty token, which anyone could guess.
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

    /// In a time that does not reveal how many bytes were right.
    fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }
}

impl Access {
    /// The rules for an admin port on `address` with these additional host names.
    pub fn to(address: &Address, mut names: Vec<String>) -> Self {
        let local = address.is_local();
        let hosts = match address {
            // Browsers cannot connect to it.
            Address::Unix(_) => None,
            // The host's names are unknown unless `--allow-host` lists them.
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
        let guarded = [RESET_PATH, OVERRIDES_PATH, PEEK_PATH];
        let probe = path == HEALTHZ_PATH || path == READYZ_PATH;
        let any_name = self.hosts.is_none();
        if host.is_some_and(|host| !self.is_for_us(host, probe || any_name))
            && (!any_name || (!self.local && self.token.is_none() && browses(request.headers())))
        {
            return Err(MISDIRECTED);
        }
        same_origin(request, host)?;
        match &self.token {
            Some(token) => {
                let open = probe || (self.open_metrics && path == METRICS_PATH);
                if !open && !token.is_shown_in(request.headers()) {
                    let challenge = HeaderValue::from_static(CHALLENGE);
                    return Err(NO_TOKEN.with_header(header::WWW_AUTHENTICATE, challenge));
                }
            }
            None if !self.local && guarded.iter().any(|start| path.starts_with(start)) => {
                return Err(NEEDS_TOKEN);
            }
            None => {}
        }
        Ok(())
    }

    fn is_for_us(&self, host: &str, any_address: bool) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse::<IpAddr>().ok();
        name.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| any_address || address.is_loopback())
            || self.hosts.iter().flatten().any(|known| {
                known.eq_ignore_ascii_case(name)
                    || address.is_some_and(|address| known.parse() == Ok(address))
            })
    }
}

/// Whether a browser may have sent it: besides what `may_be_of_a_browser` looks at, all keep their connections and say so.
/// Prometheus does not say it.
fn browses(headers: &HeaderMap) -> bool {
    let connection = headers.get(header::CONNECTION);
    may_be_of_a_browser(headers) && connection.is_some_and(|value| value != "close")
}

/// Passes requests that `access` allows.
pub(super) async fn guard(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    access.admit(&request)?;
    Ok(next.run(request).await)
}
