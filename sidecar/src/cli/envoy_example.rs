//! `envoy/envoy.yaml` with other values: `render` prints parts of it, `dev` runs it.

use std::path::{Path, PathBuf};

use axum::http::uri::Authority;
use serde_json::json;

use super::Failure;
use super::pepper;

const EXAMPLE: &str = include_str!("../../../envoy/envoy.yaml");
/// Where `make filter` puts the filter; also its path in the example.
const BUILT: &str = "target/filter/sluicegate.wasm";
/// Where `deploy/host/install` puts it.
const INSTALLED: &str = "/usr/local/lib/sluicegate/sluicegate.wasm";
const PEPPER: &str =
    "# If others can read Redis, set `pepper` too: a long random string, the same for the fleet.";
const STATIC: &str = "type: STATIC\n";

/// What Envoy needs for the filter.
#[derive(clap::Args)]
pub struct Filter {
    /// The filter, where Envoy finds it; by default target/filter/sluicegate.wasm or, if that does not exist,
    /// /usr/local/lib/sluicegate/sluicegate.wasm.
    #[arg(long = "filter", value_name = "FILE")]
    module: Option<PathBuf>,
    /// A file with the secret that is mixed into hashes of keys: the `pepper` of the filter's configuration.
    #[arg(long, value_name = "FILE")]
    pepper_file: Option<PathBuf>,
}

impl Filter {
    /// The filter that is named, or else the one that was built or installed here.
    pub fn module(&self) -> PathBuf {
        // `target/release/sluicegate` has it beside its folder.
        let program = std::env::current_exe().unwrap_or_default();
        let beside = program.parent().and_then(Path::parent);
        let beside = beside.map(|target| target.join("filter/sluicegate.wasm"));
        let mut found = [Some(PathBuf::from(BUILT)), beside].into_iter().flatten();
        let found = found.find(|path| path.is_file());
        let found = found.unwrap_or_else(|| PathBuf::from(INSTALLED));
        self.module.clone().unwrap_or(found)
    }

    /// The pepper, if one is given.
    pub fn pepper(&self) -> Result<Option<String>, Failure> {
        self.pepper_file.as_deref().map(pepper::read).transpose()
    }

    /// `sluicegate explain`, as far as this filter's requests have it in common.
    pub fn explain(&self, policy: &Path) -> Vec<String> {
        let policy = format!("--policy={}", policy.display());
        let mut words = vec!["explain".to_owned(), "--set=default".to_owned(), policy];
        let file = self.pepper_file.iter();
        words.extend(file.map(|file| format!("--pepper-file={}", file.display())));
        words
    }

    /// The example with this filter, whose rules are the set `default`.
    pub fn example(&self) -> Result<String, Failure> {
        let module = std::path::absolute(self.module()).map_err(Failure::system)?;
        let module = json!(module.to_string_lossy()).to_string();
        let mut example = EXAMPLE.replace(BUILT, &module);
        if let Some(pepper) = self.pepper()? {
            let pepper = json!(pepper);
            example = example.replace(PEPPER, &format!("pepper: {pepper}"));
        }
        Ok(example)
    }
}

/// The example with another address in place of that with this port.
pub fn with_address(example: &str, port: u16, address: &str) -> String {
    let (host, to_port) = address.rsplit_once(':').unwrap_or((address, "80"));
    let host = json!(host.trim_matches(['[', ']']));
    let from = format!("address: 127.0.0.1, port_value: {port} ");
    example.replace(&from, &format!("address: {host}, port_value: {to_port} "))
}

/// A host or an address, and a port; also as a URL, as other commands take it.
pub fn host_and_port(text: &str) -> Result<String, &'static str> {
    let text = text.strip_prefix("http://").unwrap_or(text);
    let read = text.parse::<Authority>().ok();
    let read = read.filter(|read| !read.host().is_empty() && !text.contains('@'));
    read.and_then(|read| read.port_u16().map(|_| text.to_owned()))
        .ok_or("expected a host and a port, such as 127.0.0.1:8080 or api.internal:8080")
}

/// The example with clusters whose addresses are names: each is resolved, and every address of it is tried.
pub fn by_name(example: &str) -> String {
    example.replace(STATIC, "type: LOGICAL_DNS\n      dns_lookup_family: ALL\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_each_text_that_is_replaced() {
        let ports = [10_000, 8_080, 9_180, 9_901];
        let ports = ports.map(|port| format!("address: 127.0.0.1, port_value: {port} "));
        for text in ports.iter().map(String::as_str).chain([BUILT, PEPPER]) {
            assert_eq!(EXAMPLE.matches(text).count(), 1, "{text}");
        }
        assert_eq!(EXAMPLE.matches(STATIC).count(), 2);
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let with = |text: &str| with_address("address: 127.0.0.1, port_value: 1 }", 1, text);
        for (text, fields) in [
            ("127.0.0.1:80", "address: \"127.0.0.1\", port_value: 80 }"),
            ("[::1]:8080", "address: \"::1\", port_value: 8080 }"),
            ("localhost:3", "address: \"localhost\", port_value: 3 }"),
        ] {
            assert_eq!(host_and_port(text).as_deref(), Ok(text));
            assert_eq!(with(text), fields);
        }
        assert_eq!(host_and_port("http://h:80").as_deref(), Ok("h:80"));
        for wrong in ",8080,:80,h:,h:65536,https://h:80,h/x:80,a b:1,\"h\":1,u@h:1".split(',') {
            assert!(host_and_port(wrong).is_err(), "{wrong}");
        }
    }
}
