//! Addresses of sidecars, with their defaults.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sluicegate::server::listen::Address;

use super::Failure;

/// Default address of the decision port.
pub const DECISIONS: &str = "127.0.0.1:9180";
/// Default address of the admin port.
pub const ADMIN: &str = "127.0.0.1:9181";

/// A port named by an argument, an environment variable or a default.
pub struct Port {
    /// The environment variable. It is not declared to clap, which would report a conflict with `--policy`.
    pub variable: &'static str,
    pub default: &'static str,
    /// Advice for connection errors: which arguments must agree.
    pub remedy: &'static str,
}

/// `--sidecar`.
pub const SIDECAR_PORT: Port = Port {
    variable: "SLUICEGATE_SIDECAR",
    default: DECISIONS,
    remedy: "`--sidecar` must name the same address as `--listen` of `sluicegate serve`",
};

/// `--admin`.
pub const ADMIN_PORT: Port = Port {
    variable: "SLUICEGATE_ADMIN",
    default: ADMIN,
    remedy: "`--admin` must name the same address as `--admin-listen` of `sluicegate serve`",
};

impl Port {
    /// The argument, or else the environment variable, or else the default.
    pub fn endpoint(&self, given: Option<Endpoint>) -> Result<Endpoint, Failure> {
        if let Some(given) = given {
            return Ok(given);
        }
        match std::env::var(self.variable) {
            Ok(text) if !text.is_empty() => text
                .parse()
                .map_err(|why| Failure::usage(format_args!("{}: {why}", self.variable))),
            _ => Ok(Endpoint::Http(format!("http://{}", self.default))),
        }
    }
}

/// A port of a running sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A URL without a path: `http://127.0.0.1:9180`.
    Http(String),
    /// `unix:/run/sluicegate/decisions.sock`.
    Unix(PathBuf),
}

impl Endpoint {
    /// The URL of a path on it.
    pub fn url(&self, path: &str) -> String {
        match self {
            Self::Http(base) => format!("{base}{path}"),
            // The admin port refuses any other host name on a Unix socket.
            Self::Unix(_) => format!("http://localhost{path}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(host) = text.strip_prefix("http://") else {
            return match text.parse() {
                Ok(Address::Unix(path)) => Ok(Self::Unix(path)),
                // The form that `serve --listen` accepts.
                Ok(Address::Tcp(address)) => Ok(Self::Http(format!("http://{address}"))),
                Err(_) => Err(
                    "neither a URL (http://127.0.0.1:9180) nor a Unix socket (unix:/run/sluicegate.sock)",
                ),
            };
        };
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '?', '#', '@']) {
            return Err(
                "expected a URL without user, path and query, such as http://127.0.0.1:9180",
            );
        }
        Ok(Self::Http(format!("http://{host}")))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(base) => f.write_str(base),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_or_what_serve_listens_on() {
        let read = |text: &str| Ok::<_, &str>(text.parse::<Endpoint>()?.to_string());
        for (text, endpoint) in [
            ("http://127.0.0.1:9180", "http://127.0.0.1:9180"),
            ("http://sidecar.internal/", "http://sidecar.internal"),
            ("127.0.0.1:9180", "http://127.0.0.1:9180"),
            ("[::1]:9180", "http://[::1]:9180"),
            ("unix:/run/s.sock", "unix:/run/s.sock"),
        ] {
            assert_eq!(read(text), Ok(endpoint.to_owned()), "{text}");
        }
        for wrong in ",http://,https://h,http://h/v1,http://u:p@h,unix:s,h:1".split(',') {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
