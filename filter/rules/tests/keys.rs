//! Key components, the choice of the limit, and costs.

use crate::support::{FakeRequest, asked, checking, evaluated, get, question, request, rules};

/// The key of one check with these components.
fn key(components: &str, request: &FakeRequest) -> String {
    let check = format!(r#"{{"limit":"l","key":[{components}],"when_missing":"deny"}}"#);
    match asked(&checking(&check), request).as_slice() {
        [asked] => asked
            .trim_start_matches("l ")
            .trim_end_matches(" 1")
            .to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_source_gives_a_component_with_its_own_name() {
    let request = request(
        "post",
        "/v1//vid%65os/a/../7;x?q=a+b&k=1",
        &[
            (":authority", b"API.example.com:443"),
            ("x-key", b"k"),
            ("cookie", b"a=b; session=s1"),
            ("x-forwarded-for", b"6.6.6.6, 198.51.100.7, 203.0.113.9"),
        ],
    )
    .with("connection.uri_san_peer_certificate", b"spiffe://a/b")
    .with("connection.dns_san_peer_certificate", b"client.example")
    .with("connection.subject_peer_certificate", b"CN=alice")
    .with("connection.requested_server_name", b"sni.example");
    for (component, expected) in [
        (r#"{"header":"X-Key","plain":true}"#, "x-key=k"),
        (r#"{"cookie":"session","plain":true}"#, "@cookie/session=s1"),
        (r#"{"query":"q","plain":true}"#, "@query/q=a%20b"),
        (r#"{"path":true}"#, "@path=/v1/videos/7"),
        (r#"{"method":true}"#, "@method=POST"),
        (r#"{"host":true}"#, "@host=api.example.com"),
        (r#"{"address":{}}"#, "@address=192.0.2.1"),
        (r#"{"address":{"ipv4_bits":24}}"#, "@address=192.0.2.0"),
        (r#"{"address":{"trusted_hops":2}}"#, "@address=198.51.100.7"),
        (r#"{"mtls":"spiffe"}"#, "@mtls/spiffe=spiffe://a/b"),
        (r#"{"mtls":"uri_san"}"#, "@mtls/uri_san=spiffe://a/b"),
        (r#"{"mtls":"dns_san"}"#, "@mtls/dns_san=client.example"),
        (r#"{"mtls":"subject"}"#, "@mtls/subject=CN%3Dalice"),
        (
            r#"{"attribute":"connection.requested_server_name","plain":true}"#,
            "@attribute/connection/requested_server_name=sni.example",
        ),
        (r#"{"constant":"everyone"}"#, "@constant=everyone"),
        (
            r#"{"constant":"a"},{"constant":"b"}"#,
            "@constant=a;@constant=b",
        ),
    ] {
        assert_eq!(key(component, &request), expected, "{component}");
    }
}

/// W4: a client that invents methods had a quota for each of them.
#[test]
fn methods_that_no_rule_lists_share_one_key() {
    let rules = rules(
        r#"{"name":"r","match":{"not":{"methods":["LOCK"]}},"checks":[{"limit":"l","key":[{"method":true}],
            "cost":{"table":[{"methods":["PURGE"],"cost":1}],"default":1}}],"when_unavailable":"allow"},
           {"name":"locks","match":{"methods":["LOCK"]},"checks":[{"limit":"l","key":[{"method":true}]}],"when_unavailable":"allow"}"#,
    );
    for (method, expected) in [
        ("get", "GET"),
        ("DELETE", "DELETE"),
        ("PURGE", "PURGE"),
        ("LOCK", "LOCK"),
        ("UNLOCK", "other"),
        ("XYZ", "other"),
        ("OTHER", "other"),
    ] {
        let asked = asked(&rules, &request(method, "/", &[]));
        assert_eq!(asked, [format!("l @method={expected} 1")], "{method}");
    }
}

#[test]
fn possible_secrets_are_hashed_unless_plain_is_set() {
    let request = get(
        "/?k=hunter2",
        &[("x-key", b"hunter2"), ("cookie", b"k=hunter2")],
    )
    .with("a.b", b"hunter2");
    for component in [
        r#"{"header":"x-key"}"#,
        r#"{"cookie":"k"}"#,
        r#"{"query":"k"}"#,
        r#"{"attribute":"a.b"}"#,
    ] {
        let key = key(component, &request);
        let (_, hash) = key.split_once('#').unwrap();
        assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!key.contains("hunter2"));
    }
}

#[test]
fn template_variables_do_not_depend_on_the_spelling_of_the_path() {
    let rules = rules(
        r#"{"name":"r","match":{"any":[{"path_template":"/v1/{kind}/{id}"},{"path_template":"/v2/{id}"}]},
            "checks":[{"limit":"l","key":[{"template":"id"}]}],"when_unavailable":"allow"}"#,
    );
    for path in "/v1/videos/7 /v1/a/%37 //v1/a//7;x /v2/7/ /v2/%2537".split(' ') {
        let asked = asked(&rules, &get(path, &[]));
        assert_eq!(asked, ["l @template/id=7 1"], "{path}");
    }
}

#[test]
fn a_uri_san_that_is_not_a_spiffe_id_counts_as_missing() {
    let request = get("/", &[]).with("connection.uri_san_peer_certificate", b"https://a/b");
    assert_eq!(key(r#"{"mtls":"spiffe"}"#, &request), "403");
    let given = key(r#"{"mtls":"uri_san"}"#, &request);
    assert_eq!(given, "@mtls/uri_san=https://a/b");
}

#[test]
fn two_different_values_are_refused() {
    for request in [
        get("/?k=1&k=2", &[]),
        get("/", &[("cookie", b"k=1; k=2")]),
        get("/", &[("cookie", b"k=1"), ("cookie", b"k=2")]),
        get("/", &[("k", b"1"), ("k", b"2")]),
    ] {
        let components = [r#"{"query":"k"}"#, r#"{"cookie":"k"}"#, r#"{"header":"k"}"#];
        let refused = components
            .iter()
            .filter(|component| key(component, &request) == "400");
        assert_eq!(refused.count(), 1);
    }
    // The same value twice is one.
    let twice = get("/", &[("k", b"1"), ("k", b"1")]);
    assert_eq!(key(r#"{"header":"k","plain":true}"#, &twice), "k=1");
}

#[test]
fn a_tier_is_chosen_by_a_component_and_unknown_values_get_the_default() {
    let rules = checking(
        r#"{"limit":{"by":{"header":"x-plan"},"map":{"gold":"gold-key","default":"free-key"}},
            "key":[{"constant":"c"}]}"#,
    );
    for (headers, limit) in [
        (&[("x-plan", &b"gold"[..])][..], "gold-key"),
        (&[("x-plan", &b"silver"[..])][..], "free-key"),
        (&[("x-plan", &b"GOLD"[..])][..], "free-key"),
        (&[("x-plan", &b"\xff"[..])][..], "free-key"),
        (&[][..], "free-key"),
    ] {
        let expected = [format!("{limit} @constant=c 1")];
        assert_eq!(asked(&rules, &get("/", headers)), expected);
    }
    let both: &[(&str, &[u8])] = &[("x-plan", b"gold"), ("x-plan", b"free")];
    assert_eq!(asked(&rules, &get("/", both)), ["400"]);
}

fn cost(cost: &str, request: &FakeRequest) -> u64 {
    let check = format!(r#"{{"limit":"l","key":[{{"constant":"c"}}],"cost":{cost}}}"#);
    question(&checking(&check), request).checks[0].cost
}

#[test]
fn a_cost_table_selects_by_template_and_method() {
    let table = r#"{"table":[{"template":"/search","cost":100},{"methods":["POST"],"cost":50},
        {"template":"/videos/{id}","methods":["GET"],"cost":3}],"default":2}"#;
    for (method, path, expected) in [
        ("GET", "/search", 100),
        ("GET", "/%73earch", 100),
        ("POST", "/search?x", 100),
        ("POST", "/videos/7", 50),
        ("GET", "/videos/7", 3),
        ("GET", "/other", 2),
    ] {
        let given = cost(table, &request(method, path, &[]));
        assert_eq!(given, expected, "{method} {path}");
    }
}

#[test]
fn a_trusted_header_sets_the_cost_within_max() {
    let header = r#"{"header":"X-Cost","max":50,"trusted":true,"default":5}"#;
    for (value, expected) in [
        ("7", 7),
        (" 7 ", 7),
        // F15: 0 is not a number from 1 to `max`.
        ("0", 50),
        ("51", 50),
        ("-1", 50),
        ("1e3", 50),
        ("", 50),
        ("99999999999999999999999", 50),
        ("\u{ff}", 50),
    ] {
        let request = get("/", &[("x-cost", value.as_bytes())]);
        assert_eq!(cost(header, &request), expected, "{value}");
    }
    assert_eq!(cost(header, &get("/", &[])), 5);
    let twice = get("/", &[("x-cost", b"3"), ("x-cost", b"9")]);
    assert_eq!(cost(header, &twice), 9);
}

#[test]
fn a_header_name_that_wsgi_folds_counts_as_another_value() {
    let tiers =
        r#"{"limit":{"by":{"header":"x-plan"},"map":{"default":"l"}},"key":[{"constant":"c"}]}"#;
    let cost = r#"{"limit":"l","key":[{"constant":"c"}],"cost":{"header":"x-cost","max":9,"trusted":true}}"#;
    let header = r#"{"limit":"l","key":[{"header":"x-key"}],"when_missing":"skip"}"#;
    for (check, names) in [
        (tiers, ["x-plan", "x_plan"]),
        (cost, ["x-cost", "x_cost"]),
        (header, ["x-key", "x_key"]),
    ] {
        let asked =
            |headers: &[(&str, &[u8])]| asked(&checking(check), &get("/", headers)).concat();
        let [name, folded] = names;
        assert_eq!(asked(&[(folded, b"1")]), "400", "{check}");
        let different = asked(&[(name, b"1"), (folded, b"2")]);
        assert_eq!(different, "400", "{check}");
        let same = asked(&[(name, b"1"), (folded, b"1")]);
        assert!(same.starts_with("l "), "{check}");
    }
}

/// Strangers do not share a bucket, and nobody can choose another's.
#[test]
fn an_address_in_place_of_a_missing_component_is_a_key_that_nobody_can_send() {
    let check = |address: &str| {
        format!(
            r#"{{"limit":"l","key":[{{"header":"x-key","plain":true}}],"when_missing":{{"address":{address}}}}}"#
        )
    };
    let asked = |address: &str, request: &FakeRequest| asked(&checking(&check(address)), request);
    assert_eq!(
        asked("{}", &get("/", &[])),
        ["l @missing/x-key=192.0.2.1 1"]
    );
    let network = asked(r#"{"ipv4_bits":24}"#, &get("/", &[]));
    assert_eq!(network, ["l @missing/x-key=192.0.2.0 1"]);
    let claimed = asked("{}", &get("/", &[("x-key", b"192.0.2.1")]));
    assert_eq!(claimed, ["l x-key=192.0.2.1 1"]);
    for (forwarded, expected) in [
        ("198.51.100.7", "l @missing/x-key=198.51.100.7 1"),
        ("2001:db8:1:2:3::1", "l @missing/x-key=2001:db8:1:2:: 1"),
        ("", "400"),
        ("nonsense", "400"),
    ] {
        let request = get("/", &[("x-forwarded-for", forwarded.as_bytes())]);
        let found = asked(r#"{"trusted_hops":1}"#, &request);
        assert_eq!(found, [expected], "{forwarded}");
    }
    let short = asked(r#"{"trusted_hops":1}"#, &get("/", &[]));
    assert_eq!(short, ["l @missing/x-key=unknown 1"]);
}

const CONSUMERS: &str =
    r#"{"limit":"l","key":[{"header":"x-key"}],"when_missing":{"address":{}},"consumers":true}"#;

#[test]
fn the_key_of_a_consumer_ends_with_the_key_of_a_request_without_it() {
    let asked = |rule: &str, headers: &[(&str, &[u8])]| {
        let found = question(
            &rules(&rule.replace("CHECK", CONSUMERS)),
            &get("/", headers),
        );
        let shadows = found.shadows.into_iter().flat_map(|shadow| shadow.checks);
        let keys = found.checks.into_iter().chain(shadows);
        keys.map(|check| check.key).collect::<String>()
    };
    let rule = r#"{"name":"r","when_unavailable":"allow","checks":[CHECK]}"#;
    assert_eq!(asked(rule, &[]), "@missing/x-key=192.0.2.1");
    let hashed = key(r#"{"header":"x-key"}"#, &get("/", &[("x-key", b"k")]));
    let known = asked(rule, &[("x-key", b" k ")]);
    assert_eq!(known, format!("{hashed};@missing/x-key=192.0.2.1"));
    let shadow = r#"{"name":"r","shadow":true,"checks":[CHECK]}"#;
    assert_eq!(
        asked(shadow, &[("x-key", b"k")]),
        format!("@shadow=r;{known}")
    );
}

/// In a hash of the whole key the sidecar would recognize nobody.
#[test]
fn the_longest_key_of_a_consumer_is_not_hashed() {
    let rule = format!(
        r#"{{"name":"{}","shadow":true,"checks":[{}]}}"#,
        "r".repeat(64),
        CONSUMERS
            .replace("x-key", &"k".repeat(48))
            .replace("{}", r#"{"ipv6_bits":128,"trusted_hops":1}"#)
    );
    let address = b"2001:1db8:1111:2222:3333:4444:5555:6666";
    let name = "k".repeat(48);
    let request = get("/", &[(&name, b"v"), ("x-forwarded-for", address)]);
    let key = question(&rules(&rule), &request)
        .shadows
        .remove(0)
        .checks
        .remove(0)
        .key;
    assert!(
        key.starts_with("@shadow=r") && key.ends_with(":6666"),
        "{key}"
    );
}

#[test]
fn an_unreadable_component_is_refused_whatever_when_missing_says() {
    let lying = get("/", &[("x-forwarded-for", b"nonsense")]).with("metadata", b"\xff");
    let absent = get("/", &[]);
    for component in [
        r#"{"address":{"trusted_hops":1}}"#,
        r#"{"jwt":{"payload":"p","claim":"sub"}}"#,
    ] {
        for missing in [r#""skip""#, r#""deny""#, r#"{"use":"x"}"#] {
            let key = format!(r#"{{"limit":"l","key":[{component}],"when_missing":{missing}}}"#);
            let tier = format!(
                r#"{{"limit":{{"by":{component},"map":{{"default":"l"}}}},"key":[{{"constant":"c"}}]}}"#
            );
            for check in [key, tier] {
                assert_eq!(asked(&checking(&check), &lying), ["400"], "{check}");
                assert_ne!(asked(&checking(&check), &absent), ["400"], "{check}");
            }
        }
        // A shadow rule does not refuse requests.
        let rules = rules(&format!(
            r#"{{"name":"r","shadow":true,"checks":[{{"limit":"l","key":[{component}],"when_missing":"skip"}}]}}"#
        ));
        let (evaluation, counted) = evaluated(&rules, &lying);
        assert!(matches!(evaluation, sluicegate_rules::Evaluation::Pass));
        assert_eq!(counted, ["rule=.=r;.;limit=.=l;.;rule_limit_shadow_denied"]);
    }
    let rules = checking(r#"{"limit":"l","key":[{"address":{"trusted_hops":1}}]}"#);
    let (evaluation, counted) = evaluated(&rules, &lying);
    assert_eq!(counted, ["refused_unreadable_part"]);
    let sluicegate_rules::Evaluation::Refuse(reply) = evaluation else {
        panic!()
    };
    let body = String::from_utf8_lossy(&reply.body);
    assert!(
        body.contains("cannot be read") && body.contains("`l`"),
        "{body}"
    );
}

#[test]
fn claims_and_attributes_of_different_names_are_different_subjects() {
    let claims = serde_json::json!({ "sub": 7, "sub:number": "7" });
    let request = get("/", &[])
        .with("metadata", &sluicegate_rules::metadata("p", &claims))
        .with("x.a/b", b"v")
        .with("x.a.b", b"v");
    let key = |source: &str| key(&format!(r#"{{{source},"plain":true}}"#), &request);
    let named = key(r#""jwt":{"payload":"p","claim":"sub:number"}"#);
    assert_eq!(named, "@jwt/p/sub%3Anumber=7");
    assert_ne!(key(r#""jwt":{"payload":"p","claim":"sub"}"#), named);
    let [two, three] =
        [r#"["x","a/b"]"#, r#"["x","a","b"]"#].map(|path| key(&format!(r#""attribute":{path}"#)));
    assert_ne!(two, three);
}

/// `make fuzz` looks for others.
#[test]
fn values_that_look_like_an_encoding_have_keys_of_their_own() {
    let values = ["k=v", "k;k=v", "%3B", ";", "#", "%", "v", "@missing/h0=v"];
    let mut keys = std::collections::BTreeSet::new();
    for plain in [true, false] {
        let component = |n| format!(r#"{{"header":"h{n}","plain":{plain}}}"#);
        for one in values {
            let alone = get("/", &[("h0", one.as_bytes())]);
            assert!(keys.insert(key(&component(0), &alone)), "{one}");
            for other in values {
                let both = get("/", &[("h0", one.as_bytes()), ("h1", other.as_bytes())]);
                let components = [component(0), component(1)].join(",");
                assert!(keys.insert(key(&components, &both)), "{one} {other}");
            }
        }
    }
}
