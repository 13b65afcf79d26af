//! However an upstream parses a path, the rules for what it serves apply. Tested with hostile paths on small models of
//! upstreams, each written independently of `path.rs` after the source that it names.
//!
//! A model returns what the server uses to choose the resource to serve; `None` is a request that the server refuses or
//! redirects. A request that the filter refuses (400, 414) never bypasses a rule.

mod models;

use crate::support::{Rules, asked, get};
use models::{MODELS, Served};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

const STRICT: &str = r#""strict""#;

/// A rule's `match`, independent of the filter's own types.
#[derive(Clone, Copy)]
enum Match {
    Path(&'static str),
    Prefix(&'static str),
    /// Segments (`None` is a variable), and whether the template ends with `**`.
    Template(&'static [Option<&'static str>], bool),
    NotPrefix(&'static str),
    /// An expression of this text and whatever follows.
    Regex(&'static str),
}

const MATCHES: [Match; 11] = [
    Match::Path("/a"),
    Match::Path("/a/b"),
    Match::Path("/"),
    Match::Prefix("/a/"),
    Match::Prefix("/b/a"),
    Match::Template(&[Some("a"), None], false),
    Match::Template(&[Some("a"), None], true),
    Match::Template(&[None, Some("b")], true),
    Match::NotPrefix("/a/"),
    Match::NotPrefix("/b"),
    Match::Regex("/a/"),
];

impl Match {
    fn json(self) -> String {
        match self {
            Self::Path(path) => format!(r#"{{"path":"{path}"}}"#),
            Self::Prefix(prefix) => format!(r#"{{"path_prefix":"{prefix}"}}"#),
            Self::NotPrefix(prefix) => format!(r#"{{"not":{{"path_prefix":"{prefix}"}}}}"#),
            Self::Template(..) => format!(r#"{{"path_template":"{}"}}"#, self.template()),
            Self::Regex(text) => format!(r#"{{"path_regex":"{text}.*"}}"#),
        }
    }

    fn template(self) -> String {
        let Self::Template(segments, open) = self else {
            panic!()
        };
        let segments = segments.iter().map(|one| one.unwrap_or("{x}"));
        let end = if open { "/**" } else { "" };
        format!("/{}{end}", segments.collect::<Vec<_>>().join("/"))
    }

    /// Whether it matches what a server serves. A trailing slash makes no difference, except for a prefix.
    fn is_for(self, served: &Served) -> bool {
        // For matchers that compare segments, a `/` inside a segment is not a separator.
        let is_text = !served.has_inner_slash();
        let text = served.text();
        let trimmed = |text: &[u8]| match text {
            [rest @ .., b'/'] if !rest.is_empty() => rest.to_vec(),
            text => text.to_vec(),
        };
        let begins = |prefix: &str| {
            text.starts_with(prefix.as_bytes())
                || prefix.strip_suffix('/').map(str::as_bytes) == Some(&text)
        };
        match self {
            Self::Path(path) => is_text && trimmed(&text) == trimmed(path.as_bytes()),
            Self::Prefix(prefix) => is_text && begins(prefix),
            Self::NotPrefix(prefix) => is_text && !begins(prefix),
            Self::Regex(start) => is_text && text.starts_with(start.as_bytes()),
            Self::Template(segments, open) => {
                let given = match served.0.as_slice() {
                    [given @ .., last] if last.is_empty() => given,
                    given => given,
                };
                let enough =
                    given.len() == segments.len() || (open && given.len() > segments.len());
                enough
                    && segments.iter().zip(given).all(|(one, given)| match one {
                        Some(literal) => literal.as_bytes() == given.as_slice(),
                        None => !given.is_empty(),
                    })
            }
        }
    }
}

fn configuration(upstream: &str, rules: &str) -> Rules {
    let text =
        format!(r#"{{"sidecar":{{"cluster":"s"}},"upstream_paths":{upstream},"rules":[{rules}]}}"#);
    Rules::parse(&text)
}

fn rule(name: &str, one: Match, stop: bool, check: &str) -> String {
    format!(
        r#"{{"name":"{name}","match":{},"stop":{stop},"when_unavailable":"allow","checks":[{check}]}}"#,
        one.json()
    )
}

fn constant(limit: &str) -> String {
    format!(r#"{{"limit":"{limit}","key":[{{"constant":"c"}}]}}"#)
}

/// Pieces of paths that servers read in different ways.
const PIECES: [&str; 29] = [
    "/", "/", "/", "/a", "/b", "a", "b", "a", "b", "//", "/..", "/../", "/.", "..", "%2F", "%2f..",
    "%2e", "%2E%2e", "%5C", "\\", "\\..", ";", ";x", "/..;", "%3B", "%252F", "%61", "%0A", "%",
];

/// A generator of hostile paths, the same in each run.
struct Paths(TestRunner);

impl Paths {
    fn new() -> Self {
        Self(TestRunner::deterministic())
    }

    fn number(&mut self, below: usize) -> usize {
        (0..below).new_tree(&mut self.0).unwrap().current()
    }

    fn path(&mut self) -> String {
        let mut path = "/".to_owned();
        for _ in 0..=self.number(8) {
            path += PIECES[self.number(PIECES.len())];
        }
        path
    }

    /// Another spelling of a path; whether it names the same resource depends on the server.
    fn respelt(&mut self, path: &str) -> String {
        const SPELLINGS: [(&str, &str); 12] = [
            ("/", "//"),
            ("/", "/./"),
            ("/", "/b/../"),
            ("/", "%2F"),
            ("/", ";x/"),
            ("/", "%2Fb%2F..%2F"),
            ("/", "/b%5C..%5C..%2f"),
            ("/", ";b%2F../"),
            ("a", "%61"),
            ("a", "a;"),
            ("a", "%2561"),
            ("..", "%2e%2e"),
        ];
        let mut path = path.to_owned();
        for _ in 0..=self.number(2) {
            let (from, to) = SPELLINGS[self.number(SPELLINGS.len())];
            let offsets: Vec<usize> = path.match_indices(from).map(|(at, _)| at).collect();
            if !offsets.is_empty() {
                let at = offsets[self.number(offsets.len())];
                path.replace_range(at..at + from.len(), to);
            }
            if !path.starts_with('/') {
                path.insert(0, '/');
            }
        }
        path
    }
}

/// What each model serves for a path that it does not refuse, by the model's name.
fn served(path: &str) -> impl Iterator<Item = (&'static str, Served)> {
    let each = MODELS.iter();
    each.filter_map(move |model| Some((model.name, (model.serve)(path)?)))
}

fn is_refused(asked: &[String]) -> bool {
    matches!(asked, [one] if one == "400" || one == "414")
}

/// First promise: a rule for what the server serves applies.
#[test]
fn a_rule_for_what_any_model_serves_applies() {
    let rules = MATCHES.map(|one| configuration(STRICT, &rule("r", one, false, &constant("l"))));
    let mut paths = Paths::new();
    let (mut applied, mut refused) = (0, 0);
    for _ in 0..4_000 {
        let path = paths.path();
        let answers = rules.each_ref().map(|rules| asked(rules, &get(&path, &[])));
        for (model, resource) in served(&path) {
            for (one, asked) in MATCHES.iter().zip(&answers) {
                if one.is_for(&resource) {
                    applied += 1;
                    refused += usize::from(is_refused(asked));
                    let rule = one.json();
                    assert!(!asked.is_empty(), "{model}: {rule} {path}: {resource:?}");
                }
            }
        }
    }
    assert!(applied > 20_000, "{applied}");
    // Refusing everything would keep the promise too: it must not happen.
    assert!(refused * 100 < applied, "{refused} of {applied}");
}

/// Second promise: with the server's name or choices configured, the only reading is the server's.
#[test]
fn a_named_upstream_has_exactly_the_reading_of_its_model() {
    let mut paths = Paths::new();
    for model in MODELS.iter().filter(|model| !model.named.is_empty()) {
        let name = model.named;
        let rules = configuration(name, &rule("r", MATCHES[0], false, &constant("l")));
        let mut compared = 0;
        for _ in 0..4_000 {
            let path = paths.path();
            let Some(resource) = (model.serve)(&path) else {
                continue;
            };
            compared += 1;
            let readings = rules.readings(&get(&path, &[]));
            assert_eq!(readings.len(), 1);
            let read = readings[0].path.clone().unwrap();
            assert_eq!(read, resource.text(), "{name}: {path}");
        }
        assert!(compared > 600, "{name}: {compared}");
    }
}

/// Third promise (F2, F17): requests for one resource are counted under one key, or refused.
#[test]
fn one_resource_of_any_model_has_one_key() {
    let keys = [
        (Match::Prefix("/"), r#"{"path":true}"#),
        (MATCHES[6], r#"{"template":"x"}"#),
        (MATCHES[7], r#"{"template":"x"},{"path":true}"#),
    ];
    let mut paths = Paths::new();
    let tier = r#"{"limit":{"by":{"template":"x"},"map":{"a":"a","b":"b","default":"d"}},"key":[{"constant":"c"}]}"#;
    let checks = keys.map(|(one, key)| {
        let check = format!(r#"{{"limit":"l","key":[{key}],"when_missing":"deny"}}"#);
        (one, check)
    });
    let checks = checks.into_iter().chain([(MATCHES[6], tier.to_owned())]);
    let rules: Vec<(Match, Rules)> = checks
        .map(|(one, check)| (one, configuration(STRICT, &rule("r", one, false, &check))))
        .collect();
    let (mut pairs, mut refused) = (0, 0);
    for _ in 0..6_000 {
        let path = paths.path();
        let other = paths.respelt(&path);
        if path == other {
            continue;
        }
        for model in &MODELS {
            let one = (model.serve)(&path);
            let Some(one) = one.filter(|one| (model.serve)(&other).as_ref() == Some(one)) else {
                continue;
            };
            for (_, rules) in rules.iter().filter(|(matcher, _)| matcher.is_for(&one)) {
                let [first, second] = [&path, &other].map(|path| asked(rules, &get(path, &[])));
                pairs += 1;
                if is_refused(&first) || is_refused(&second) {
                    refused += 1;
                } else {
                    let name = model.name;
                    assert_eq!(first, second, "{name}: {path} and {other} are {one:?}");
                    assert_eq!(first.len(), 1);
                }
            }
        }
    }
    assert!(pairs > 1_500 && refused * 2 < pairs, "{refused} of {pairs}");
}

/// Fourth promise (F3): no request costs less than the resource that the server serves.
#[test]
fn no_request_costs_less_than_what_any_model_serves() {
    let table = [(MATCHES[6], 7), (MATCHES[5], 3), (MATCHES[7], 1)];
    let entries =
        table.map(|(one, cost)| format!(r#"{{"template":"{}","cost":{cost}}}"#, one.template()));
    let check = format!(
        r#"{{"limit":"l","key":[{{"constant":"c"}}],"cost":{{"table":[{}],"default":5}}}}"#,
        entries.join(",")
    );
    let rules = configuration(STRICT, &rule("r", Match::Prefix("/"), false, &check));
    let mut paths = Paths::new();
    for _ in 0..4_000 {
        let path = paths.path();
        let answer = asked(&rules, &get(&path, &[]));
        // A refusal's "cost" is its status.
        let cost = answer[0].rsplit(' ').next().unwrap();
        let cost: u64 = cost.parse().unwrap();
        for (model, resource) in served(&path) {
            let entry = table.iter().find(|(one, _)| one.is_for(&resource));
            let least = entry.map_or(5, |(_, cost)| *cost);
            assert!(
                cost >= least,
                "{model}: {path} costs {cost}, {resource:?} {least}"
            );
        }
    }
}

/// Fifth promise (F16): all rules that the list has for the served resource are evaluated, despite `stop`.
#[test]
fn stop_hides_no_rule_from_any_model() {
    let mut paths = Paths::new();
    for _ in 0..100 {
        let list: Vec<(Match, bool)> = (0..4)
            .map(|_| (MATCHES[paths.number(MATCHES.len())], paths.number(2) == 0))
            .collect();
        let written = |(index, (one, stop)): (usize, &(Match, bool))| {
            let check = constant(&format!("l{index}"));
            rule(&format!("r{index}"), *one, *stop, &check)
        };
        let written: Vec<String> = list.iter().enumerate().map(written).collect();
        let rules = configuration(STRICT, &written.join(","));
        for _ in 0..60 {
            let path = paths.path();
            let answer = asked(&rules, &get(&path, &[]));
            // Only templates compare segments that contain a `/`; other matchers have no meaning here.
            for (model, resource) in served(&path).filter(|(_, one)| !one.has_inner_slash()) {
                for (index, (one, stop)) in list.iter().enumerate() {
                    if one.is_for(&resource) {
                        let limit = format!("l{index} ");
                        let asked = answer.iter().any(|check| check.starts_with(&limit));
                        assert!(
                            asked || is_refused(&answer),
                            "{model}: {path} is {resource:?}: {written:?} asks {answer:?}"
                        );
                        if *stop {
                            break;
                        }
                    }
                }
            }
        }
    }
}
