//! Every matcher, cost and tier, through a real Envoy.

use serde_json::{Value, json};

use super::sources::Recorded;

#[tokio::test]
async fn every_matcher_and_their_combinations() {
    let rule = |name: &str, matcher: Value| {
        json!({ "name": name, "match": matcher, "checks": [{ "limit": name, "key": [{ "constant": "c" }] }],
            "when_unavailable": "deny" })
    };
    let mut stop = rule("stop", json!({ "path": "/stop" }));
    stop["stop"] = json!(true);
    let rules = json!([
        rule("path", json!({ "path": "/exact" })),
        rule("prefix", json!({ "path_prefix": "/prefix/" })),
        rule("template", json!({ "path_template": "/t/{a}/x" })),
        rule("regex", json!({ "path_regex": "/r[0-9]+" })),
        rule("method", json!({ "path": "/m", "methods": ["PUT"] })),
        rule("host", json!({ "hosts": ["*.example.org"] })),
        rule(
            "header",
            json!({ "headers": [{ "name": "X-A", "prefix": "ab" }, { "name": "x-b", "present": false }] })
        ),
        rule(
            "query",
            json!({ "query": [{ "name": "q", "regex": "[a-z]+" }] })
        ),
        rule(
            "any",
            json!({ "any": [{ "path": "/any1" }, { "path": "/any2" }], "not": { "methods": ["POST"] } })
        ),
        stop,
        rule("after", json!({ "path_prefix": "/stop" })),
    ]);
    let recorded = Recorded::start(rules, |_| {}).await;
    for (line, headers, limits) in [
        ("GET /exact", vec![], vec!["path"]),
        ("GET /./%65xact/?a=b", vec![], vec!["path"]),
        ("GET /prefix/a", vec![], vec!["prefix"]),
        ("GET /x/../prefix/a", vec![], vec!["prefix"]),
        ("GET /t/%2e%2e%2f/x", vec![], vec!["template"]),
        ("GET /t/7/x;y", vec![], vec!["template"]),
        ("GET /r12", vec![], vec!["regex"]),
        ("GET /r12x", vec![], vec![]),
        ("PUT /m", vec![], vec!["method"]),
        ("GET /m", vec![], vec![]),
        ("GET /", vec!["host: A.Example.ORG:80"], vec!["host"]),
        ("GET /", vec!["host: h", "x-a: abc"], vec!["header"]),
        ("GET /", vec!["host: h", "x-a: abc", "x-b: 1"], vec![]),
        ("GET /?a&q=abc", vec![], vec!["query"]),
        ("GET /?q=1", vec![], vec![]),
        ("GET /any2", vec![], vec!["any"]),
        ("POST /any2", vec![], vec![]),
        ("GET /stop", vec![], vec!["stop"]),
        ("GET /stop/x", vec![], vec!["after"]),
    ] {
        let line = format!("{line} HTTP/1.1");
        let mut lines = vec![line.as_str()];
        lines.extend(if headers.is_empty() {
            vec!["host: h"]
        } else {
            headers
        });
        let asked = recorded.asked(&lines).await;
        let expected: Vec<_> = limits
            .iter()
            .map(|limit| format!("{limit} @constant=c 1"))
            .collect();
        assert_eq!(asked, expected, "{lines:?}");
    }
}

#[tokio::test]
async fn costs_and_tiers() {
    let rules = json!([{
        "name": "r",
        "checks": [
            { "limit": "table", "key": [{ "constant": "c" }],
              "cost": { "table": [{ "template": "/search", "methods": ["GET"], "cost": 100 }], "default": 2 } },
            { "limit": "header", "key": [{ "constant": "c" }],
              "cost": { "header": "x-cost", "max": 50, "trusted": true } },
            { "limit": { "by": { "header": "x-plan" }, "map": { "gold": "gold-key", "default": "free-key" } },
              "key": [{ "constant": "c" }] },
        ],
        "when_unavailable": "deny",
    }]);
    let recorded = Recorded::start(rules, |_| {}).await;
    let asked = recorded
        .asked(&[
            "GET /search?q HTTP/1.1",
            "host: h",
            "x-cost: 7",
            "x-plan: gold",
        ])
        .await;
    assert_eq!(
        asked,
        [
            "table @constant=c 100",
            "header @constant=c 7",
            "gold-key @constant=c 1"
        ]
    );
    let asked = recorded
        .asked(&[
            "POST /search HTTP/1.1",
            "host: h",
            "content-length: 0",
            "x-cost: 70000",
        ])
        .await;
    assert_eq!(
        asked,
        [
            "table @constant=c 2",
            "header @constant=c 50",
            "free-key @constant=c 1"
        ]
    );
}
