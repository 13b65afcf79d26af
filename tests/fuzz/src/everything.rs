//! Rules with every matcher, source and cost, and with tiers.

/// As JSON, without the brackets around them.
pub const RULES: &str = r#"
    {"name":"paths","match":{"any":[{"path":"/a"},{"path_prefix":"/b/"},{"path_template":"/{x}/{y}/**"},
        {"path_regex":"/[a-z]+(/.*)?"}]},
     "checks":[{"limit":"l","key":[{"path":true},{"method":true},{"host":true}],
        "cost":{"table":[{"template":"/{x}","cost":7}]}}],"when_unavailable":"deny"},
    {"name":"fields","match":{"not":{"headers":[{"name":"x-skip","present":true}]},
        "any":[{"query":[{"name":"q","regex":".*"}]},{"hosts":["*.example.com"]},{"methods":["GET"]}]},
     "checks":[
        {"limit":"l","key":[{"header":"x-api-key","plain":true},{"cookie":"s","plain":true},{"query":"q","plain":true}],
         "when_missing":{"use":"none"}},
        {"limit":"l","key":[{"header":"x-api-key"},{"cookie":"s"},{"query":"q"}],
         "cost":{"header":"x-cost","max":9,"trusted":true},"when_missing":{"use":"none"}},
        {"limit":{"by":{"header":"x-plan"},"map":{"gold":"g","default":"f"}},"key":[{"address":{"trusted_hops":1}}]},
        {"limit":"l","key":[{"address":{}}],"when_missing":"skip"},
        {"limit":"l","key":[{"cookie":"s"}],"when_missing":{"address":{}},"consumers":true},
        {"limit":"l","key":[{"jwt":{"payload":"p","claim":["a","b"]},"plain":true}]},
        {"limit":"l","key":[{"mtls":"spiffe"},{"mtls":"subject"}]},
        {"limit":"l","key":[{"attribute":"connection.requested_server_name","plain":true}]}],
     "when_unavailable":"allow"},
    {"name":"shadow","shadow":true,"match":{"path_template":"/{x}"},
     "checks":[{"limit":"l","key":[{"template":"x"}]}]}"#;

/// Headers that the rules read, and others.
pub const NAMES: &str = ":path :method :authority host x-api-key cookie x-forwarded-for x-cost x-plan x-skip content-type \
    authorization traceparent";

/// Likewise attributes.
pub const ATTRIBUTES: &str = "source.address metadata connection.uri_san_peer_certificate \
    connection.subject_peer_certificate connection.requested_server_name connection.mtls";
