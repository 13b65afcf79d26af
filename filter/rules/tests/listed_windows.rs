//! `RateLimit-Policy` lists every window of every limit of the request, if the sidecar has told them.

use crate::support::answered::{answer, answered, field, reply};
use crate::support::{FakeRequest, Rules, get, question};
use sfv::{BareItem, ListEntry, Parser};
use sluicegate_rules::{Conclusion, HeaderFields, metadata};

const SET: &str = r#"{"set":"s","windows":{"per-key":[[5,2000],[100,60000]],"everyone":[[900,1500]],"asked":[[7,1000]],"gold":[[9,9000]]}}"#;

/// Three limits, one of them in two rules, and a shadow rule's.
fn rules() -> Rules {
    let constant = r#""key":[{"constant":"c"}]"#;
    let first = format!(
        r#"{{"name":"first","checks":[{{"limit":"per-key",{constant}}},{{"limit":"everyone",{constant}}}],"when_unavailable":"deny","reply":{{"on_admitted":true}}}}"#
    );
    let again = format!(
        r#"{{"name":"again","checks":[{{"limit":"per-key","key":[{{"constant":"d"}}]}},
            {{"limit":"asked","quota":{{"jwt":{{"payload":"jwt","claim":"quota"}}}},{constant}}}],"when_unavailable":"deny"}}"#
    );
    let unknown = format!(
        r#"{{"name":"unknown","match":{{"path":"/unknown"}},"checks":[{{"limit":"calendar",{constant}}}],"when_unavailable":"deny"}}"#
    );
    let shadow =
        format!(r#"{{"name":"shadow","shadow":true,"checks":[{{"limit":"gold",{constant}}}]}}"#);
    let again = again.replace('\n', " ");
    Rules::pushed(SET, &[&first, &again, &unknown, &shadow])
}

/// The header fields of the reply to a request, if this check decides by this window.
fn fields(
    rules: &Rules,
    request: &FakeRequest,
    outcome: &str,
    check: usize,
    window: [u64; 2],
) -> HeaderFields {
    let [quota, window_ms] = window;
    let verdict = format!(
        r#"{{"outcome":"{outcome}","check":{check},"limit":"l","quota":{quota},"window_ms":{window_ms},"remaining":2,"reset_ms":900,"retry_after_ms":0}}"#
    );
    let shadow = verdict.replace(&format!(r#""check":{check}"#), r#""check":0"#);
    match answered(&question(rules, request), &answer(&[verdict, shadow])).0 {
        Conclusion::Continue(headers, _) => headers,
        denied => reply(denied).headers,
    }
}

fn policy(fields: &HeaderFields) -> &str {
    field(fields, "ratelimit-policy").unwrap()
}

/// Name, quota and window of each policy, according to an independent parser.
fn parsed(field: &str) -> Vec<(String, Option<i64>, Option<i64>)> {
    let list = Parser::new(field).parse::<sfv::List>().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{field}")
        };
        let BareItem::String(name) = &item.bare_item else {
            panic!("{field}")
        };
        let parameter = |name: &str| match item.params.get(name) {
            Some(BareItem::Integer(number)) => Some(i64::from(*number)),
            _ => None,
        };
        (name.as_str().to_owned(), parameter("q"), parameter("w"))
    };
    list.iter().map(item).collect()
}

#[test]
fn every_window_of_every_limit_is_listed_once_and_whoever_decides_the_list_is_the_same() {
    let (rules, request) = (rules(), get("/", &[]));
    let all = r#""per-key/2s";q=5;w=2, "per-key/60s";q=100;w=60, "everyone/1500ms";q=900, "asked/1s";q=7;w=1"#;
    let named = |name: &str, q, w| (name.to_owned(), Some(q), w);
    let expected = [
        named("per-key/2s", 5, Some(2)),
        named("per-key/60s", 100, Some(60)),
        named("everyone/1500ms", 900, None),
        named("asked/1s", 7, Some(1)),
    ];
    assert_eq!(parsed(all), expected);
    for outcome in ["denied", "admitted"] {
        for (check, window, decided) in [
            (0, [5, 2_000], "\"per-key/2s\";r=2"),
            (0, [100, 60_000], "\"per-key/60s\";r=2"),
            (1, [900, 1_500], "\"everyone/1500ms\";r=2"),
            (2, [100, 60_000], "\"per-key/60s\";r=2"),
            (3, [7, 1_000], "\"asked/1s\";r=2"),
        ] {
            let fields = fields(&rules, &request, outcome, check, window);
            assert_eq!(policy(&fields), all, "{check}");
            let is = field(&fields, "ratelimit").unwrap();
            assert!(is.starts_with(decided), "{is}");
        }
    }
}

#[test]
fn a_limit_that_an_override_or_a_claim_has_changed_is_listed_with_the_window_that_decided() {
    let rules = rules();
    let rest = r#", "everyone/1500ms";q=900"#;
    let request = get("/", &[]);
    let of = |check, window| fields(&rules, &request, "denied", check, window);
    let own = r#""per-key/2s";q=50;w=2"#;
    for check in [0, 2] {
        let fields = of(check, [50, 2_000]);
        assert_eq!(
            policy(&fields),
            format!(r#"{own}{rest}, "asked/1s";q=7;w=1"#)
        );
    }
    let claims = metadata("jwt", &serde_json::json!({ "quota": 70 }));
    let request = get("/", &[]).with("metadata", &claims);
    let of = |check, window| fields(&rules, &request, "denied", check, window);
    let per_key = r#""per-key/2s";q=5;w=2, "per-key/60s";q=100;w=60"#;
    let fields = of(3, [70, 1_000]);
    assert_eq!(
        policy(&fields),
        format!(r#"{per_key}{rest}, "asked/1s";q=70;w=1"#)
    );
    // Another limit decides: what the claim would give is not known.
    let fields = of(0, [5, 2_000]);
    assert_eq!(policy(&fields), format!("{per_key}{rest}"));
}

#[test]
fn a_limit_whose_windows_are_not_known_is_listed_when_it_decides() {
    let (rules, request) = (rules(), get("/unknown", &[]));
    let known = r#""per-key/2s";q=5;w=2, "per-key/60s";q=100;w=60, "everyone/1500ms";q=900, "asked/1s";q=7;w=1"#;
    let own = fields(&rules, &request, "denied", 4, [10, 86_400_000]);
    assert_eq!(
        policy(&own),
        format!(r#"{known}, "calendar/86400s";q=10;w=86400"#)
    );
    let other = fields(&rules, &request, "denied", 1, [900, 1_500]);
    assert_eq!(policy(&other), known);
}
