//! What the containers must not be able to do: checked on the running processes, not in docker-compose.yml.

use serde_json::Value;

use crate::engine::Engine;

/// A line of the report.
#[derive(Debug)]
pub struct Container {
    pub service: &'static str,
    pub user: String,
    pub memory: u64,
    pub ports: Vec<String>,
}

/// Checks a running service.
///
/// # Panics
/// It is root, can gain privileges, has a capability, lacks a limit, can write to its image, or listens on other addresses than loopback.
pub fn check(engine: &Engine, service: &'static str) -> Container {
    let id = engine.container(service);
    let status = engine.docker(&["exec", &id, "cat", "/proc/1/status"]);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("{service}: no {name} in /proc/1/status"));
        value
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let user = field("Uid:");
    assert_ne!(user, "0", "{service} is root");
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        let value = field(capabilities);
        assert!(
            value.bytes().all(|b| b == b'0'),
            "{service}: {capabilities} {value}"
        );
    }
    assert_eq!(field("NoNewPrivs:"), "1", "{service} may gain privileges");

    // As root, so that the read-only file system refuses and not a permission.
    let write = ["exec", "--user", "0", &id, "touch", "/written"];
    assert!(!engine.succeeds(&write), "{service} can write to its image");

    let about: Value = serde_json::from_str(&engine.docker(&["inspect", &id])).expect("JSON");
    let limit = |name: &str| {
        let value = about[0]["HostConfig"][name].as_u64().unwrap_or_default();
        assert!(value > 0, "{service} has no limit {name}");
        value
    };
    limit("NanoCpus");
    limit("PidsLimit");
    let bound = about[0]["NetworkSettings"]["Ports"].as_object();
    let bound = bound.into_iter().flat_map(|ports| ports.values());
    let bound = bound.filter_map(Value::as_array).flatten();
    let ports = bound.map(|port| {
        assert_eq!(
            port["HostIp"], "127.0.0.1",
            "{service} is open to the world"
        );
        port["HostPort"].as_str().unwrap_or_default().to_owned()
    });
    Container {
        service,
        user,
        memory: limit("Memory"),
        ports: ports.collect(),
    }
}
