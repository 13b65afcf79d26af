//! Which requests a rule applies to.

use crate::support::{FakeRequest, Rules, asked, get, matching, request};

/// Whether a rule with this `match` applies to a request.
fn is_for(matcher: &str, request: &FakeRequest) -> bool {
    !asked(&matching(matcher), request).is_empty()
}

#[test]
fn a_path_is_matched_whole_by_prefix_by_template_and_by_expression() {
    for (matcher, path, expected) in [
        (r#"{"path":"/login"}"#, "/login", true),
        (r#"{"path":"/login"}"#, "/login/", true),
        (r#"{"path":"/login/"}"#, "/login?a=b", true),
        (r#"{"path":"/login"}"#, "/login/x", false),
        (r#"{"path":"/login"}"#, "/Login", false),
        (r#"{"path":"/"}"#, "/", true),
        (r#"{"path_prefix":"/v1/"}"#, "/v1/a", true),
        (r#"{"path_prefix":"/v1/"}"#, "/v1", true),
        (r#"{"path_prefix":"/v1/"}"#, "/v11", false),
        (r#"{"path_prefix":"/v1"}"#, "/v11", true),
        (r#"{"path_prefix":"/"}"#, "", true),
        (r#"{"path_prefix":"/"}"#, "*", true),
        (r#"{"path_template":"/v1/{id}"}"#, "/v1/7", true),
        (r#"{"path_template":"/v1/{id}"}"#, "/v1", false),
        (r#"{"path_regex":"/v[0-9]+/.*"}"#, "/v12/x", true),
        // The whole path must match, as in Envoy.
        (r#"{"path_regex":"v[0-9]"}"#, "/v1", false),
        (r#"{"path_regex":"/a|/b"}"#, "/bc", false),
    ] {
        let given = is_for(matcher, &get(path, &[]));
        assert_eq!(given, expected, "{matcher} {path}");
    }
}

/// A client that could end an expression's `.` with `%0A` would choose which rules apply to it.
#[test]
fn an_encoded_newline_bypasses_no_expression() {
    let versions = r#"{"path_regex":"/v[2-9]/.*"}"#;
    for target in ["/v2/x%0A", "/v%32/x%0A", "/v%32/%250Ax"] {
        let asked = asked(&matching(versions), &get(target, &[]));
        assert_eq!(asked.len(), 1, "{target}");
    }
    for upstream in ["go", "wsgi", "tomcat", "nginx"] {
        let rules = Rules::parse(&format!(
            r#"{{"sidecar":{{"cluster":"s"}},"upstream_paths":"{upstream}","rules":[{{"name":"r","match":{versions},
                "when_unavailable":"allow","checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}]}}]}}"#
        ));
        let asked = asked(&rules, &get("/v2/x%0A", &[]));
        assert_eq!(asked.len(), 1, "{upstream}");
    }
    let export = matching(r#"{"query":[{"name":"op","regex":"export.*"}]}"#);
    assert_eq!(asked(&export, &get("/?op=export%0A", &[])).len(), 1);
    // An operator may write an expression that means one line.
    let line = matching(r#"{"path_regex":"(?-s)/line/.*"}"#);
    assert!(asked(&line, &get("/lin%65/x%0A", &[])).is_empty());
}

/// `(?m)` changes what `^` and `$` mean in an expression, and not that it must match the whole value.
#[test]
fn an_expression_of_many_lines_matches_the_whole_value() {
    for (expression, target, expected) in [
        ("(?m)/admin", "/admin", 1),
        ("(?m)/admin$", "/admin%0Ax", 0),
        ("(?m)/admin$", "/x%0A/admin", 0),
        ("(?m)/admin$.*", "/admin%0Ax", 1),
        ("(?m)/admin.*", "/admin%0A%0D%0Ax", 1),
        ("(?mR)/admin.*", "/admin%0A%0D%0Ax", 1),
    ] {
        let rules = matching(&format!(r#"{{"path_regex":"{expression}"}}"#));
        let asked = asked(&rules, &get(target, &[]));
        assert_eq!(asked.len(), expected, "{expression} {target}");
    }
}

#[test]
fn no_spelling_of_a_path_bypasses_a_rule() {
    let matchers = [
        r#"{"path":"/v1/videos/7"}"#,
        r#"{"path_prefix":"/v1/videos/"}"#,
        r#"{"path_template":"/v1/videos/{id}"}"#,
        r#"{"path_regex":"/v1/videos/.+"}"#,
        r#"{"not":{"path_prefix":"/public/"}}"#,
        r#"{"any":[{"path":"/elsewhere"},{"path_template":"/v1/*/7"}]}"#,
    ];
    let spellings = r"
        /v1/videos/7 /v1/videos/7/ //v1///videos/7 /v1/./videos/7 /x/../v1/videos/7 /public/../v1/videos/7
        /public/%2e%2e/v1/videos/7 /public/%252e%252e/v1/videos/7 /public/..;/v1/videos/7 /public%2f..%2fv1/videos/7
        /public/..\v1\videos/7 /v1/%76ideos/7 /v1/vide%6Fs/7 /v1;a/videos;b=c/7;d /v1%2fvideos%2F7 /v1%5Cvideos\7
        http://elsewhere/v1/videos/7
    ";
    for path in spellings.split_whitespace() {
        for matcher in matchers {
            assert!(is_for(matcher, &get(path, &[])), "{matcher} {path}");
        }
    }
}

#[test]
fn hosts_are_compared_without_case_and_port() {
    let matcher = r#"{"hosts":["API.example.com","*.example.org"]}"#;
    for (host, expected) in [
        ("api.example.com", true),
        ("API.EXAMPLE.COM.:443", true),
        ("a.b.example.org", true),
        ("example.org", false),
        ("api.example.com.evil.net", false),
    ] {
        let request = get("/", &[(":authority", host.as_bytes())]);
        assert_eq!(is_for(matcher, &request), expected, "{host}");
    }
}

#[test]
fn headers_and_query_parameters_are_matched_by_presence_value_prefix_and_expression() {
    for (condition, none, empty, gold, golden) in [
        (r#""present":true"#, false, true, true, true),
        (r#""present":false"#, true, false, false, false),
        (r#""equals":"gold""#, false, false, true, false),
        (r#""equals":"""#, false, true, false, false),
        (r#""prefix":"gold""#, false, false, true, true),
        (r#""regex":"gol.""#, false, false, true, false),
        (r#""regex":".*""#, false, true, true, true),
    ] {
        let header = format!(r#"{{"headers":[{{"name":"X-Plan",{condition}}}]}}"#);
        let query = format!(r#"{{"query":[{{"name":"plan",{condition}}}]}}"#);
        assert_eq!(is_for(&header, &get("/", &[])), none, "{header}");
        assert_eq!(is_for(&query, &get("/?x=plan", &[])), none, "{query}");
        for (value, expected) in [("", empty), ("gold", gold), ("golden", golden)] {
            let with = get("/", &[("x-plan", value.as_bytes())]);
            assert_eq!(is_for(&header, &with), expected, "{header} {value}");
            let with = get(&format!("/?a=b&pl%61n={value}"), &[]);
            assert_eq!(is_for(&query, &with), expected, "{query} {value}");
        }
    }
}

#[test]
fn any_of_several_values_may_match_and_present_false_allows_none() {
    let twice = get("/", &[("x-plan", b"free"), ("X-Plan", b"gold")]);
    assert!(is_for(
        r#"{"headers":[{"name":"x-plan","equals":"gold"}]}"#,
        &twice
    ));
    assert!(!is_for(
        r#"{"headers":[{"name":"x-plan","present":false}]}"#,
        &twice
    ));
}

#[test]
fn conditions_are_combined_by_all_any_and_not() {
    let matcher = r#"{"methods":["GET"],
        "all":[{"path_prefix":"/a"},{"not":{"path":"/a/public"}}],
        "any":[{"headers":[{"name":"x","present":true}]},{"query":[{"name":"x","present":true}]}]}"#;
    for (path, expected) in [
        ("/a/b?x", true),
        ("/a/b", false),
        ("/a/public?x", false),
        ("/b?x", false),
    ] {
        assert_eq!(is_for(matcher, &get(path, &[])), expected, "{path}");
    }
    assert!(is_for(matcher, &get("/a", &[("x", b"")])));
    assert!(!is_for(matcher, &request("POST", "/a?x", &[])));
}

#[test]
fn bytes_that_are_not_utf8_are_matched_like_others() {
    let request = get("/a", &[("x", b"a\xffb")]);
    for condition in [r#""regex":"a.b""#, r#""prefix":"a""#] {
        let matcher = format!(r#"{{"headers":[{{"name":"x",{condition}}}]}}"#);
        assert!(is_for(&matcher, &request), "{condition}");
    }
    let request = FakeRequest {
        headers: [(":path", &b"/a%ff/\xff"[..])].into_iter().collect(),
        ..FakeRequest::default()
    };
    assert!(is_for(r#"{"path_template":"/{a}/{b}"}"#, &request));
}
