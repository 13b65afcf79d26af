//! A request that is described, as Envoy would pass it to the filter.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use sluicegate_rules::{ConfigError, Headers, Request, Settings, config};

/// What Envoy strips from a header; the rules see all other white space.
const BLANK: [char; 2] = [' ', '\t'];

/// Headers and Envoy's attributes.
#[derive(Clone, Debug)]
pub struct DescribedRequest {
    /// With those that begin with a colon.
    pub headers: Headers,
    /// By their paths: `source.address`.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

impl Request for DescribedRequest {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attributes.get(&path.join(".")).cloned()
    }
}

impl DescribedRequest {
    /// A request (`GET /search?q=x`) with these headers, from this address.
    ///
    /// # Errors
    /// It has no method or no path.
    pub fn new<'h>(
        request: &'h str,
        given: impl IntoIterator<Item = (&'h str, &'h str)>,
        peer: IpAddr,
    ) -> Result<Self, String> {
        let (method, target) = parts(request, ' ', "GET /path")?;
        let target = target.trim_matches(BLANK);
        // As in a request line.
        let target = match target.rsplit_once(' ') {
            Some((target, version)) if version.starts_with("HTTP/") => target,
            _ => target,
        };
        let absolute = target.split_once("://").map(|(_, rest)| rest);
        let (host, path) =
            match absolute.map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len()))) {
                Some((host, path)) => (Some(host), if path.is_empty() { "/" } else { path }),
                None => (None, target),
            };
        let mut headers = vec![(":method", method), (":path", path)];
        headers.extend(host.map(|host| (":authority", host)));
        for (name, value) in given {
            let (name, value) = (name.trim_matches(BLANK), value.trim_matches(BLANK));
            match (name.eq_ignore_ascii_case("host"), host) {
                // Envoy takes that of the target.
                (true, Some(_)) => {}
                (true, None) => headers.push((":authority", value)),
                (false, _) => headers.push((name, value)),
            }
        }
        let peer = SocketAddr::new(peer, 0).to_string().into_bytes();
        Ok(Self {
            headers: headers.into_iter().collect(),
            attributes: [("source.address".to_owned(), peer)].into(),
        })
    }
}

/// The parts of a text of this form.
///
/// # Errors
/// It is of another form.
pub fn parts<'a>(text: &'a str, separator: char, form: &str) -> Result<(&'a str, &'a str), String> {
    let parts = text.split_once(separator);
    parts.ok_or_else(|| format!("`{text}` is not of the form `{form}`"))
}

/// The settings of a plugin of which only the pepper is known.
///
/// # Errors
/// The pepper cannot be one.
pub fn settings(pepper: &str) -> Result<Settings, ConfigError> {
    let plugin = json!({
        "version": 2, "sidecar": { "cluster": "-" }, "rule_sets": { "default": "-" }, "pepper": pepper,
    });
    config::settings(plugin).map(|(settings, _)| settings)
}
