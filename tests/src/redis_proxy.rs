//! Envoy as a proxy in front of Redis, which spreads keys over its upstreams.

use std::path::Path;

use serde_json::json;

use crate::envoy::Envoy;
use crate::process::free_port;

/// Starts one in front of Redis on these ports, which spreads keys by their hash tags or as a whole.
///
/// # Panics
/// It does not become ready.
pub async fn redis_proxy(folder: &Path, upstreams: &[u16], by_tags: bool) -> Envoy {
    let (port, admin_port) = (free_port(), free_port());
    let address =
        |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let endpoint = |port: &u16| json!({ "endpoint": { "address": address(*port) } });
    let endpoints: Vec<_> = upstreams.iter().map(endpoint).collect();
    let proxy = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
        "stat_prefix": "redis",
        "settings": { "op_timeout": "5s", "enable_hashtagging": by_tags },
        "prefix_routes": { "catch_all_route": { "cluster": "redis" } },
    });
    let config = json!({
        "admin": { "address": address(admin_port) },
        "static_resources": {
            "listeners": [{
                "address": address(port),
                "filter_chains": [{
                    "filters": [{ "name": "envoy.filters.network.redis_proxy", "typed_config": proxy }]
                }]
            }],
            "clusters": [{
                "name": "redis",
                "lb_policy": "MAGLEV",
                "load_assignment": {
                    "cluster_name": "redis",
                    "endpoints": [{ "lb_endpoints": endpoints }]
                }
            }]
        }
    });
    Envoy::start_config(folder, 1, port, admin_port, &config).await
}
