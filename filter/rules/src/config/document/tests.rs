//! Documents of a sidecar, good and hostile.

use super::*;
use crate::matcher::{Condition, Matcher, OnPath};

const HEAD: &str = r#"{"format":1,"digest":"a41c09d2e7f3","instance":4711,"lines":LINES}"#;

/// A document with these lines.
fn document(lines: &[&str]) -> String {
    let head = HEAD.replace("LINES", &lines.len().to_string());
    [&[head.as_str()], lines]
        .concat()
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

fn set(name: &str) -> String {
    format!(r#"{{"set":"{name}","windows":{{"l":[[5,2000],[100,60000]]}}}}"#)
}

fn rule(name: &str, matcher: &str) -> String {
    format!(
        r#"{{"rule":{{"name":"{name}","match":{matcher},"checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}],"when_unavailable":"allow"}}}}"#
    )
}

/// One set with one rule.
fn small() -> String {
    document(&[&set("gateway"), &rule("r", "{}")])
}

/// Compiles a whole document, for a filter that may run these sets.
fn compiled(text: &str, names: &[&str]) -> Result<Vec<Rc<RuleSet>>, ConfigError> {
    let mut document = Document::new(text.as_bytes().to_vec())?;
    document.check()?;
    while document.compile_line()? {}
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    document.finish(&names)
}

/// A set with these rules.
pub(crate) fn set_of(rules: &[&str]) -> Rc<RuleSet> {
    let lines: Vec<String> = rules
        .iter()
        .map(|rule| format!(r#"{{"rule":{rule}}}"#))
        .collect();
    let (set, lines) = (set("s"), lines.iter().map(String::as_str));
    let lines: Vec<&str> = std::iter::once(set.as_str()).chain(lines).collect();
    compiled(&document(&lines), &["s"]).unwrap().remove(0)
}

fn refused(text: &str, field: &str, why: &str) {
    let error = compiled(text, &["gateway"]).expect_err(why);
    assert_eq!(error.field, field, "{error}");
    assert!(error.why.contains(why), "no {why} in: {error}");
}

/// The regular expressions of a set's rules, in order.
fn expressions(set: &RuleSet) -> Vec<Rc<Regex>> {
    let mut found = Vec::new();
    for rule in &set.rules {
        rule.matcher.visit(&mut |matcher| match matcher {
            Matcher::OnPath(OnPath::Regex(regex))
            | Matcher::Header(_, Condition::Regex(regex))
            | Matcher::Query(_, Condition::Regex(regex)) => found.push(Rc::clone(regex)),
            _ => {}
        });
    }
    found
}

#[test]
fn each_line_is_compiled_by_itself_and_the_sets_come_in_the_order_of_their_names() {
    let text = document(&[
        &set("internal"),
        r#"{"regex":"/a.*"}"#,
        &rule("one", r#"{"path_regex":"/a.*"}"#),
        &rule("two", "{}"),
        &set("gateway"),
        &rule("one", "{}"),
    ]);
    let mut read = Document::new(text.clone().into_bytes()).unwrap();
    assert_ne!(read.head.lines, 0);
    assert_eq!(
        (read.head.digest.as_str(), read.head.instance),
        ("a41c09d2e7f3", 4711)
    );
    for _ in 0..6 {
        assert!(read.compile_line().unwrap());
    }
    assert!(!read.compile_line().unwrap());
    let sets = compiled(&text, &["gateway", "internal"]).unwrap();
    assert_eq!(
        [sets[0].count(), sets[1].count()],
        [1, 2],
        "a set that nobody runs would be left out"
    );
    assert_eq!(sets[1].rule_name(1), "two");
    assert_eq!(compiled(&text, &["internal"]).unwrap().len(), 1);
}

#[test]
fn a_head_without_lines_says_that_nothing_has_changed() {
    let text = HEAD.replace("LINES", "0") + "\n";
    let document = Document::new(text.into_bytes()).unwrap();
    assert_eq!(document.head.lines, 0);
}

#[test]
fn a_document_that_is_cut_off_anywhere_is_refused() {
    let whole = small();
    assert!(compiled(&whole, &["gateway"]).is_ok());
    for end in 0..whole.len() {
        assert!(
            compiled(whole.get(..end).unwrap(), &["gateway"]).is_err(),
            "{end}"
        );
    }
    let (cut, _) = whole.trim_end().rsplit_once('\n').unwrap();
    refused(&format!("{cut}\n"), "rules", "1 of 2 lines arrived");
    let one_more = whole.clone() + &rule("s", "{}") + "\n";
    refused(&one_more, "rules", "3 of 2 lines arrived");
}

#[test]
fn a_wrong_head_is_refused() {
    for (head, field, why) in [
        ("", "rules", "not the head"),
        ("\n", "rules", "line 1: EOF"),
        ("[]\n", "rules", "not the head"),
        ("7\n", "rules", "not the head"),
        ("{}\n", "rules", "not the head"),
        (
            r#"{"format":1,"format":1,"digest":"a41c09d2e7f3","instance":1,"lines":0}"#,
            "rules",
            "no end",
        ),
    ] {
        refused(head, field, why);
    }
    let twice = r#"{"format":1,"format":1,"digest":"a41c09d2e7f3","instance":1,"lines":0}"#;
    refused(&format!("{twice}\n"), "rules", "duplicate field `format`");
    for digest in [
        "",
        "a41c09d2e7f",
        "a41c09d2e7f33",
        "A41C09D2E7F3",
        "a41c09d2e7fé",
    ] {
        let text = small().replace("a41c09d2e7f3", digest);
        refused(&text, "rules", "not the head");
    }
    refused(&small().replace("4711", "-1"), "rules", "not the head");
}

#[test]
fn another_format_is_refused_before_anything_is_compiled() {
    let text = small().replace(r#""format":1"#, r#""format":3,"more":{}"#);
    let document = Document::new(text.into_bytes()).unwrap();
    let error = document.check().unwrap_err();
    assert_eq!(error.field, "format");
    assert!(error.why.contains("upgrade the filter"), "{error}");
}

#[test]
fn documents_and_lines_that_are_too_long_are_refused() {
    let mut text = small();
    while text.len() <= MAX_BYTES {
        text.push_str(&rule("more", "{}"));
    }
    refused(&text, "rules", "more than 262144");
    let long = rule(
        "r",
        &format!(r#"{{"path":"/{}"}}"#, "x".repeat(MAX_LINE_BYTES)),
    );
    let text = document(&[&set("gateway"), &long]);
    refused(&text, "rules", "line 2 has no end within 16384 bytes");
    let fits = format!(r#"{{"path":"/{}"}}"#, "x".repeat(MAX_LINE_BYTES - 200));
    assert!(
        compiled(
            &document(&[&set("gateway"), &rule("r", &fits)]),
            &["gateway"]
        )
        .is_ok()
    );
}

#[test]
fn what_a_line_says_is_refused_with_the_rule_and_the_field() {
    let after = |lines: &[&str]| document(&[&[set("gateway").as_str()], lines].concat());
    let one = rule("r", "{}");
    let text = after(&[&rule("r", r#"{"path":"login"}"#)]);
    refused(&text, "rules.gateway.rules[0].match.path", "begin with `/`");
    let text = after(&[&one, &one]);
    refused(&text, "rules.gateway.rules[1].name", "another rule");
    refused(&document(&[&one]), "rule", "before any set");
    let text = after(&[&one, &set("gateway"), &one]);
    refused(&text, "set", "`gateway` is there already");
    refused(&after(&[r#"{"regex":"("}"#]), "regex", "`(`");
    refused(&after(&[r#"{"regex":5}"#]), "set", "neither");
    refused(&after(&["null"]), "set", "neither");
    // What a later version may know.
    let text = after(&[&one.replace(r#""name""#, r#""nmae":1,"name""#)]);
    refused(
        &text,
        "rules.gateway.rules[0].nmae",
        "is no field that this version knows",
    );
    let text = document(&[r#"{"set":"gateway","replies":{}}"#]);
    refused(&text, "replies", "is no field that this version knows");
    let many: Vec<String> = (0..257).map(|n| rule(&n.to_string(), "{}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused(&after(&many), "rules", "more than 256");
    assert!(compiled(&after(&many[1..]), &["gateway"]).is_ok());
}

#[test]
fn a_set_that_the_policy_does_not_have_is_named() {
    let error = compiled(&small(), &["gateway", "internal"]).unwrap_err();
    assert_eq!(error.field, "rule_sets");
    assert!(error.why.contains("no rule set `internal`"), "{error}");
}

#[test]
fn json_that_is_nested_without_end_is_refused() {
    for depth in [100, 1_000, 7_000] {
        let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let matcher = format!("{}{{}}{}", r#"{"not":"#.repeat(depth), "}".repeat(depth));
        for line in [lists, rule("r", &matcher)] {
            let error = compiled(&document(&[&set("gateway"), &line]), &["gateway"]);
            assert!(error.is_err(), "{depth}");
        }
    }
}

#[test]
fn an_expression_is_compiled_by_a_line_of_its_own_and_nowhere_else() {
    let nested = r#"{"any":[{"not":{"query":[{"name":"q","regex":"only-here"}]}}]}"#;
    let text = document(&[&set("gateway"), &rule("r", nested)]);
    let why = "no line before it has the expression `only-here`";
    let at = "rules.gateway.rules[0].match.any[0].not.query[0].regex";
    refused(&text, at, why);
    let line = r#"{"regex":"only-here"}"#;
    assert!(
        compiled(
            &document(&[&set("gateway"), line, &rule("r", nested)]),
            &["gateway"]
        )
        .is_ok()
    );
    let many: Vec<String> = (0..=MAX_EXPRESSIONS)
        .map(|n| format!(r#"{{"regex":"x{n}"}}"#))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused(&document(&many), "regex", "more than 1024");
}

#[test]
fn what_a_filter_would_take_too_long_for_is_refused() {
    let long = "a".repeat(MAX_EXPRESSION_BYTES + 1);
    let line = format!(r#"{{"regex":"{long}"}}"#);
    refused(&document(&[&line]), "regex", "4097 bytes");
    let tiers: Vec<String> = (1..=super::super::checks::MAX_LIMITS)
        .map(|n| format!(r#""t{n}":"l{n}","#))
        .collect();
    let limit =
        |tiers: &str| format!(r#"{{"by":{{"header":"x"}},"map":{{{tiers}"default":"d"}}}}"#);
    let of = |tiers: &str| {
        let rule =
            rule("r", "{}").replace(r#""limit":"l""#, &format!(r#""limit":{}"#, limit(tiers)));
        document(&[&set("gateway"), &rule])
    };
    refused(
        &of(&tiers.concat()),
        "rules.gateway.rules[0].checks",
        "select 257 limits",
    );
    assert!(compiled(&of(&tiers[1..].concat()), &["gateway"]).is_ok());
}

#[test]
fn an_expression_that_would_be_huge_is_refused_in_little_time() {
    for regex in [
        "(?:){4294967295}",
        "(?:(?:a{0,1000}){0,1000}){0,1000}",
        "(?:a{1,4294967295}){4294967295}",
        "[a-z]{40000}",
    ] {
        let line = format!(r#"{{"regex":"{regex}"}}"#);
        refused(&document(&[&line]), "regex", regex);
    }
}

#[test]
fn what_nothing_uses_any_more_does_not_become_more() {
    for version in 0..20 {
        let lines: Vec<String> = (0..10)
            .map(|n| format!(r#"{{"regex":"/{version}/{n}"}}"#))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let text = document(&[&lines[..], &[&set("gateway"), &rule("r", "{}")]].concat());
        compiled(&text, &["gateway"]).unwrap();
        let known = |version: &u32| expressions::known(&format!("/{version}/9")).is_some();
        assert!((0..=version).filter(known).count() <= 2, "{version}");
    }
}

#[test]
fn two_documents_share_the_expressions_that_both_have() {
    let of = |more: &str| {
        let matcher = r#"{"path_regex":"/shared/.*","headers":[{"name":"h","regex":"REGEX"}]}"#;
        let matcher = matcher.replace("REGEX", more);
        let line = format!(r#"{{"regex":"{more}"}}"#);
        let lines = [
            &set("gateway"),
            r#"{"regex":"/shared/.*"}"#,
            &line,
            &rule("r", &matcher),
        ];
        compiled(&document(&lines), &["gateway"]).unwrap()
    };
    let (before, after) = (of("a"), of("b"));
    let [before_has, after_has] = [&before[0], &after[0]].map(|set| expressions(set));
    assert_eq!([before_has.len(), after_has.len()], [2, 2]);
    assert!(Rc::ptr_eq(&before_has[0], &after_has[0]));
    assert!(!Rc::ptr_eq(&before_has[1], &after_has[1]));
    let gone = Rc::downgrade(&before_has[1]);
    drop((before, before_has));
    assert!(gone.upgrade().is_some(), "freed with the set");
    expressions::free_unused(0);
    assert!(gone.upgrade().is_some());
    expressions::free_unused(1);
    assert!(gone.upgrade().is_none());
    expressions::free_unused(usize::MAX);
    assert!(expressions::known("/shared/.*").is_some());
}
