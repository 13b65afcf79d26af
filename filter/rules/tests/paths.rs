//! Attacks through a request's target that worked once, each with the number of its finding, and ordinary paths that
//! must keep working. `upstreams/` tests the general case.

use crate::support::{FakeRequest, Rules, asked, checking, get, matching, request, rules};
use sluicegate_rules::Evaluation;

fn of_template(template: &str, key: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","match":{{"path_template":"{template}"}},"when_unavailable":"allow",
            "checks":[{{"limit":"l","key":[{key}]}}]}}"#
    ))
}

/// The converse of F2 and F17: a path on which all readings agree is not ambiguous.
#[test]
fn ordinary_paths_are_not_refused() {
    let id = of_template("/v1/{kind}/{id}", r#"{"template":"id"}"#);
    for (target, key) in [
        ("/v1/files/hello%20world", "hello%20world"),
        ("/v1/files/%E2%82%AC", "%E2%82%AC"),
        ("/v1/%76ideos/7", "7"),
        ("/v1//videos/7", "7"),
        ("//v1/videos/7/", "7"),
        ("/v1/videos/7;v=1", "7"),
        ("/v1/files/100%", "100%25"),
        ("/v1/files/a%2Fb", "a/b"),
        ("/v1/files/;x", "%3Bx"),
    ] {
        let expected = format!("l @template/id={key} 1");
        assert_eq!(asked(&id, &get(target, &[])), [expected], "{target}");
    }
    let path = checking(r#"{"limit":"l","key":[{"path":true}]}"#);
    for (target, key) in [
        ("/files/hello%20world", "/files/hello%20world"),
        ("/v1/%76ideos", "/v1/videos"),
        ("/a//b;v=1/x/../c%2Fd/", "/a/b/c/d"),
        ("/.well-known/x", "/.well-known/x"),
    ] {
        let expected = format!("l @path={key} 1");
        assert_eq!(asked(&path, &get(target, &[])), [expected], "{target}");
    }
}

/// F6
#[test]
fn a_semicolon_in_the_query_hides_no_parameter() {
    let key = r#"[{"query":"account","plain":true}]"#;
    let account = checking(&format!(
        r#"{{"limit":"l","key":{key},"when_missing":"deny"}}"#
    ));
    assert_eq!(asked(&account, &get("/?x=1;account=bob", &[])), ["400"]);
    assert_eq!(asked(&account, &get("/?account=bob;x", &[])), ["400"]);
    // A semicolon that does not affect what a rule reads has no effect.
    let expected = ["l @query/account=bob 1"];
    assert_eq!(asked(&account, &get("/?x=1;2&account=bob", &[])), expected);
    let present = matching(r#"{"query":[{"name":"debug","present":true}]}"#);
    assert_eq!(asked(&present, &get("/?x=1;debug", &[])).len(), 1);
    let absent = matching(r#"{"query":[{"name":"free","present":false}]}"#);
    assert_eq!(asked(&absent, &get("/?free;x", &[])).len(), 1);
}

/// F8
#[test]
fn get_in_a_list_of_methods_is_also_head() {
    let read = matching(r#"{"methods":["GET"]}"#);
    let head = matching(r#"{"methods":["HEAD"]}"#);
    let costs = checking(
        r#"{"limit":"l","key":[{"constant":"c"}],"cost":{"table":[{"methods":["GET"],"cost":9}]}}"#,
    );
    for (method, by_get, by_head, cost) in [
        ("GET", 1, 0, "9"),
        ("HEAD", 1, 1, "9"),
        ("head", 1, 1, "9"),
        ("POST", 0, 0, "1"),
    ] {
        let request = request(method, "/", &[]);
        assert_eq!(asked(&read, &request).len(), by_get, "{method}");
        assert_eq!(asked(&head, &request).len(), by_head, "{method}");
        assert_eq!(asked(&costs, &request), [format!("l @constant=c {cost}")]);
    }
}

/// F16
#[test]
fn a_rule_stops_another_only_where_both_match() {
    let list = |second: &str| {
        rules(&format!(
            r#"{{"name":"public","match":{{"path_prefix":"/public/"}},"stop":true,"when_unavailable":"allow",
            "checks":[{{"limit":"lenient","key":[{{"constant":"c"}}]}}]}},
           {{"name":"second",{second}"when_unavailable":"allow","checks":[{{"limit":"strict","key":[{{"constant":"c"}}]}}]}}"#
        ))
    };
    let search = list(r#""match":{"path_prefix":"/search/"},"#);
    let (lenient, strict) = ("lenient @constant=c 1", "strict @constant=c 1");
    for (target, expected) in [
        ("/public/x", &[lenient][..]),
        ("/public/a%20b", &[lenient]),
        ("/search/x", &[strict]),
        ("/search/..%2Fpublic%2Fx", &[lenient, strict]),
        ("/search/../public/x", &[lenient, strict]),
        ("/public/..%2fsearch/x", &[lenient, strict]),
        ("/public/..;/search/x", &[lenient, strict]),
    ] {
        assert_eq!(asked(&search, &get(target, &[])), expected, "{target}");
    }
    // An upstream that does not merge slashes serves this outside `/public/`.
    let all = list("");
    assert_eq!(asked(&all, &get("//public/x", &[])), [lenient, strict]);
    assert_eq!(asked(&all, &get("/public/x", &[])), [lenient]);
}

fn status(rules: &Rules, request: &FakeRequest) -> u32 {
    match rules.evaluate(request) {
        Evaluation::Refuse(reply) => {
            let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(body["status"], reply.status);
            reply.status
        }
        Evaluation::Pass => 204,
        Evaluation::Ask(_) | Evaluation::NoVerdict(..) => 200,
    }
}

/// F13
#[test]
fn input_too_long_for_a_regular_expression_is_refused_and_not_let_through() {
    let long = "a".repeat(4096);
    for matcher in [r#"{"path_regex":"/a*"}"#, r#"{"not":{"path_regex":"/b*"}}"#] {
        let rules = matching(matcher);
        assert_eq!(status(&rules, &get(&format!("/{}", &long[1..]), &[])), 200);
        assert_eq!(status(&rules, &get(&format!("/{long}"), &[])), 414);
    }
    for condition in [r#""regex":"a*""#, r#""regex":".*b""#] {
        let header = matching(&format!(r#"{{"headers":[{{"name":"x",{condition}}}]}}"#));
        let query = matching(&format!(r#"{{"query":[{{"name":"x",{condition}}}]}}"#));
        assert_eq!(status(&header, &get("/", &[("x", long.as_bytes())])), 431);
        assert_eq!(status(&query, &get(&format!("/?x={long}"), &[])), 414);
        // Many values are as much work as one long value.
        let many = vec![("x", &b"aaaaaaa"[..]); 512];
        assert_eq!(status(&header, &get("/", &many[1..])) / 100, 2);
        let more = [&many[..], &[("x", b"a")]].concat();
        assert_eq!(status(&header, &get("/", &more)), 431);
        let more = format!("/?{}", "x=a&".repeat(2049));
        assert_eq!(status(&query, &get(&more, &[])), 414);
    }
}

/// With backtracking, each of these would take more steps than there are atoms.
#[test]
fn expressions_that_would_backtrack_take_linear_time() {
    let long = "a".repeat(2_000);
    let expressions = "/(a+)+ /(a|a)* /(a*)*b /(.*)(.*)(.*)(.*)! /((a{1,9}){1,9}){1,9}";
    for expression in expressions.split(' ') {
        let rules = matching(&format!(r#"{{"path_regex":"{expression}"}}"#));
        let asked = |end: char| asked(&rules, &get(&format!("/{long}{end}"), &[]));
        assert!(
            asked('?').len() <= 1 && asked('-').is_empty(),
            "{expression}"
        );
    }
}

/// F13
#[test]
fn a_regular_expression_that_is_not_needed_refuses_nothing() {
    let long = format!("/{}", "a".repeat(50_000));
    for (matcher, expected) in [
        (r#"{"methods":["POST"],"path_regex":"/a*"}"#, 204),
        (r#"{"path_regex":"/a*","hosts":["other.example"]}"#, 204),
        (
            r#"{"any":[{"path_regex":"/b*"},{"path_prefix":"/a"}]}"#,
            200,
        ),
        (r#"{"path_prefix":"/a"}"#, 200),
    ] {
        let given = status(&matching(matcher), &get(&long, &[]));
        assert_eq!(given, expected, "{matcher}");
    }
    let shadow = rules(
        r#"{"name":"s","shadow":true,"match":{"path_regex":"/a*"},"checks":[{"limit":"l","key":[{"constant":"c"}]}]}"#,
    );
    assert_eq!(status(&shadow, &get(&long, &[])), 204);
}

/// F13
#[test]
fn a_path_with_too_many_readings_is_refused_where_a_rule_needs_them() {
    let hostile = format!("/v1/{}", r"%2F..;\".repeat(8192 / 8));
    let ordinary = format!("/v1/{}", "a%20b".repeat(3000));
    for (matcher, of_hostile, of_ordinary) in [
        (r#"{"path_prefix":"/v1/"}"#, 414, 200),
        (r#"{"not":{"path_prefix":"/v2/"}}"#, 414, 200),
        (r#"{"methods":["POST"],"path_prefix":"/v1/"}"#, 204, 204),
        (r#"{"methods":["GET"]}"#, 200, 200),
    ] {
        let rules = matching(matcher);
        let given = [&hostile, &ordinary].map(|path| status(&rules, &get(path, &[])));
        assert_eq!(given, [of_hostile, of_ordinary], "{matcher}");
    }
    // Its key and its cost must be safe too.
    let everyone = rules(
        r#"{"name":"r","when_unavailable":"allow","checks":[{"limit":"l","key":[{"path":true}]}]}"#,
    );
    assert_eq!(status(&everyone, &get(&hostile, &[])), 400);
    let costs = rules(
        r#"{"name":"r","when_unavailable":"allow","checks":[{"limit":"l","key":[{"constant":"c"}],
            "cost":{"table":[{"template":"/v2","cost":3},{"template":"/v1/**","cost":9}],"default":2}}]}"#,
    );
    assert_eq!(asked(&costs, &get(&hostile, &[])), ["l @constant=c 9"]);
}

fn upstream(paths: &str, rule: &str) -> Rules {
    let text = format!(
        r#"{{"sidecar":{{"cluster":"s"}},"upstream_paths":{paths},"rules":[{{"name":"r","when_unavailable":"allow",{rule}}}]}}"#
    );
    Rules::parse(&text)
}

/// F2: with a known upstream, paths that other upstreams would read differently need not be refused.
#[test]
fn a_known_upstream_has_one_reading_and_refuses_nothing() {
    let rule = r#""match":{"path_template":"/login/{account}"},"checks":[{"limit":"l","key":[{"template":"account"}]}]"#;
    let choices = r#"{"parameters":"cut_decoded","escapes":"once","encoded_slash":"literal","backslash":"literal",
        "double_slash":"keep","dot_segments":"keep","query_semicolon":"literal"}"#;
    for (paths, target, key) in [
        (r#""tomcat""#, "/login/bob;x%2F..%2Fr1", Some("bob")),
        (r#""nginx""#, "/login/bob;x%2F..%2Fr1", Some("r1")),
        (r#""go""#, "/login/bob;x%2F..%2Fr1", None),
        (r#""wsgi""#, "/login/a%2Fb", None),
        (choices, "/login/a%2Fb%3Bc", Some("a/b")),
    ] {
        let given = asked(&upstream(paths, rule), &get(target, &[])).pop();
        let expected = key.map(|key| format!("l @template/account={key} 1"));
        assert_eq!(given, expected, "{paths}");
    }
    let rule = r#""checks":[{"limit":"l","key":[{"query":"a","plain":true}],"when_missing":{"use":"none"}}]"#;
    for (paths, key) in [
        (r#""go""#, "@missing/@query/a=none"),
        (r#""wsgi""#, "@query/a=1%3Bb"),
    ] {
        let answer = asked(&upstream(paths, rule), &get("/?a=1;b", &[]));
        assert_eq!(answer, [format!("l {key} 1")], "{paths}");
    }
}
