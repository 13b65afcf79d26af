//! `envoy/envoy.yaml` with other values: `render` prints parts of it, `dev` runs it.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sluicegate::policy::Policy;

use super::Failure;

const EXAMPLE: &str = include_str!("../../../envoy/envoy.yaml");
const MODULE: &str = "filename: target/filter/sluicegate.wasm";
const PEPPER: &str =
    "# If others can read Redis, set `pepper` too: a long random string, the same for the fleet.";
const SIDECAR: &str = "sidecar: { cluster: sluicegate }\n";
const RULE_SET: &str = "                            rule_sets: { default: ingress }\n";

/// Where `make filter` and `deploy/host/install` put the filter.
pub const MODULES: [&str; 2] = [
    "target/filter/sluicegate.wasm",
    "/usr/local/lib/sluicegate/sluicegate.wasm",
];

/// A host or an address, with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.strip_prefix("http://").unwrap_or(text);
        let parts = address.trim_end_matches('/').rsplit_once(':');
        let read = parts.and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = port.parse().ok().filter(|port| *port > 0)?;
            let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
            (!host.is_empty() && host.chars().all(is_host)).then(|| Self {
                host: host.to_owned(),
                port,
            })
        });
        read.ok_or("expected a host and a port, such as 127.0.0.1:8080 or api.internal:8080")
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What Envoy needs for the filter.
#[derive(clap::Args)]
pub struct Filter {
    /// The filter, where Envoy finds it; by default target/filter/sluicegate.wasm or, if that does not exist,
    /// /usr/local/lib/sluicegate/sluicegate.wasm.
    #[arg(long = "filter", value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// A file with the secret that is mixed into hashes of keys: the `pepper` of the filter's configuration.
    #[arg(long, value_name = "FILE")]
    pepper_file: Option<PathBuf>,
}

impl Filter {
    /// The pepper as text between quotation marks.
    fn pepper(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.pepper_file else {
            return Ok(None);
        };
        let file = path.display();
        let text = std::fs::read_to_string(path);
        let text =
            text.map_err(|error| Failure::usage(format_args!("cannot read {file}: {error}")))?;
        match text.trim() {
            "" => Err(Failure::usage(format_args!(
                "{file} is empty: `openssl rand -hex 32` makes a pepper"
            ))),
            pepper => Ok(Some(quoted(pepper))),
        }
    }
}

/// A text as YAML. JSON's quotation is also YAML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The example's text, with other values.
pub struct Example(pub String);

impl Example {
    /// The example with this filter, which runs this rule set.
    pub fn with(filter: &Filter, module: &Path, rule_set: &str) -> Result<Self, Failure> {
        let mut example = Self(EXAMPLE.to_owned());
        let module = std::path::absolute(module).map_err(Failure::system)?;
        example.set(
            MODULE,
            &format!("filename: {}", quoted(&module.to_string_lossy())),
        );
        if let Some(pepper) = filter.pepper()? {
            example.set(PEPPER, &format!("pepper: {pepper}"));
        }
        let other = RULE_SET.replace("ingress", rule_set);
        let other = if rule_set == "default" { "" } else { &other };
        example
            .set(RULE_SET, "")
            .set(SIDECAR, &format!("{SIDECAR}{other}"));
        Ok(example)
    }

    pub fn set(&mut self, from: &str, to: &str) -> &mut Self {
        self.0 = self.0.replace(from, to);
        self
    }

    /// Sets the address of the example's cluster on this port.
    pub fn set_cluster(&mut self, name: &str, port: u16, to: &HostPort) {
        let address = format!("address: {}, port_value: {}", quoted(&to.host), to.port);
        self.set(&format!("address: 127.0.0.1, port_value: {port}"), &address);
        if to.host.parse::<IpAddr>().is_err() {
            // `localhost` may be an address of each family. With this type, Envoy tries both for each connection.
            let by_name =
                format!("- name: {name}\n      type: LOGICAL_DNS\n      dns_lookup_family: ALL");
            self.set(&format!("- name: {name}\n      type: STATIC"), &by_name);
        }
    }
}

/// The policy's rule set for an Envoy: the one called `default`, or the only one.
pub fn rule_set(policy: &Policy) -> Result<&str, Failure> {
    let mut names = policy.rules.sets.keys().map(String::as_str);
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only),
        _ if policy.rules.sets.contains_key("default") => Ok("default"),
        (None, _) => Err(Failure::usage(
            "the policy has no rules, so it limits no request: give it rules, in a set called `default`",
        )),
        _ => Err(Failure::usage(format_args!(
            "the policy has several rule sets, and none is called `default`: {}; rename the one for this Envoy",
            policy
                .rules
                .sets
                .keys()
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_each_text_that_is_replaced_once() {
        let ports = [10_000, 8_080, 9_180, 9_901];
        let ports = ports.map(|port| format!("address: 127.0.0.1, port_value: {port} "));
        let clusters = ["upstream", "sluicegate"];
        let clusters = clusters.map(|name| format!("- name: {name}\n      type: STATIC\n"));
        let others = [MODULE, PEPPER, SIDECAR, RULE_SET].map(str::to_owned);
        for text in ports.into_iter().chain(clusters).chain(others) {
            assert_eq!(EXAMPLE.matches(&text).count(), 1, "{text}");
        }
    }

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        for (text, shown) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:8080", "[::1]:8080"),
            ("http://api.internal:8080/", "api.internal:8080"),
        ] {
            let read: HostPort = text.parse().unwrap();
            assert_eq!(read.to_string(), shown);
        }
        for wrong in ",8080,:80,h:,h:0,h:65536,https://h:80,h/x:80,a b:1,\"h\":1".split(',') {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_policy_without_a_set_for_envoy_is_refused() {
        let limits =
            "limits: { l: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }\nrules:";
        let set = "{ rules: [{ name: r, checks: [{ limit: l, key: [{ constant: c }] }], when_unavailable: allow }] }";
        let of = |sets: &[&str]| {
            let sets = sets.iter().map(|name| format!(" {name}: {set}"));
            let sets = sets.collect::<Vec<_>>().join(",");
            let policy = Policy::parse(&format!("{limits} {{{sets}}}")).unwrap();
            rule_set(&policy)
                .map(str::to_owned)
                .map_err(|why| why.to_string())
        };
        assert_eq!(of(&["a"]).as_deref(), Ok("a"));
        assert_eq!(of(&["a", "default"]).as_deref(), Ok("default"));
        assert!(of(&["a", "b"]).unwrap_err().contains("a, b"));
        assert!(of(&[]).unwrap_err().contains("no rules"));
    }
}
