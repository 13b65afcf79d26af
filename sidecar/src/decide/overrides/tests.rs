//! Which override decides, and what a list says of them.

use super::*;

const POLICY: &str = "
limits:
  l:
    algorithm: sliding_log
    windows: [{ quota: 5, per: 1s }]
    overrides:
      - { key: a, quota: 50 }
      - { key: b, blocked: true, until: 1970-01-01T00:00:05Z }
  m: { algorithm: sliding_log, windows: [{ quota: 5, per: 1s }] }
";

fn stored(entries: &[(&str, &str, &str)]) -> Option<Arc<StoredOverrides>> {
    let entry = |(limit, key, terms): &(&str, &str, &str)| {
        let terms = serde_json::from_str(terms).unwrap();
        let entry = Override {
            version: 1,
            ..Override::read(terms).unwrap()
        };
        let whom = match *key {
            "" => Whom::AllKeys(true),
            key => match key.strip_prefix('#') {
                Some(digits) => Whom::Subject(digits.to_owned()),
                None => Whom::Key(key.to_owned()),
            },
        };
        (((*limit).to_owned(), whom), entry)
    };
    Some(Arc::new(StoredOverrides {
        version: 1,
        entries: entries.iter().map(entry).collect(),
        ..StoredOverrides::default()
    }))
}

fn quota(effect: Option<(&Effect, Option<u64>)>) -> Option<u64> {
    match effect {
        Some((Effect::Quotas(windows), _)) => Some(windows[0].quota),
        _ => None,
    }
}

#[test]
fn the_stores_override_comes_before_the_policys_until_it_ends() {
    let policy = Policy::parse(POLICY).unwrap();
    let ends = r#"{"unlimited":true,"until":"1970-01-01T00:00:03Z"}"#;
    let stored = stored(&[("l", "a", ends), ("m", "a", r#"{"quota":7}"#)]);
    let overrides = Overrides::new(&policy, stored);
    let at = |now_ms| overrides.at(now_ms);
    let unlimited = (&Effect::Unlimited, Some(2_000));
    assert_eq!(at(1_000).find("l", "a"), Some(unlimited));
    assert_eq!(quota(at(3_000).find("l", "a")), Some(50), "it has ended");
    assert_eq!(quota(at(1_000).find("m", "a")), Some(7));
    assert_eq!(at(1_000).find("m", "b"), None);
    assert_eq!(at(4_999).find("l", "b"), Some((&Effect::Blocked, Some(1))));
    assert_eq!(at(5_000).find("l", "b"), None);
    let counts = [("quota", 1), ("unlimited", 1), ("blocked", 1), ("unfit", 0)];
    assert_eq!(overrides.counts(&policy, 0), counts.into());
}

#[test]
fn a_list_says_which_overrides_have_an_effect() {
    use OverrideSource::{Policy as InPolicy, Store};
    use OverrideState::{Ended, Hidden, InForce, Unfit};
    let policy = Policy::parse(POLICY).unwrap();
    let stored = stored(&[
        ("l", "a", r#"{"unlimited":true}"#),
        ("l", "c", r#"{"windows":[{"quota":5,"per":"1h"}]}"#),
        ("gone", "a", r#"{"quota":7}"#),
    ]);
    let overrides = Overrides::new(&policy, stored);
    let list = overrides.list(&policy, 6_000);
    let states = list.iter();
    let states = states.map(|one| {
        let key = one.key.as_deref().unwrap_or("");
        (&*one.limit, key, one.source, one.state)
    });
    assert!(states.eq([
        ("gone", "a", Store, Unfit),
        ("l", "a", InPolicy, Hidden),
        ("l", "a", Store, InForce),
        ("l", "b", InPolicy, Ended),
        ("l", "c", Store, Unfit),
    ]));
    assert_eq!(list[0].subject, Some(Subject::of("a").to_string()));
}

const UNLIMITED: &str = r#"{"unlimited":true}"#;
const BLOCKED: &str = r#"{"blocked":true}"#;

#[test]
fn digits_match_their_key_unless_a_client_can_choose_its_text() {
    let hash = "ab3f1704f76fd869f6c1c98eb2dd779e";
    let hashed = format!("x-tenant#{hash}");
    let composed = format!("@address=192.0.2.1;@cookie/a#{hash};@mtls/spiffe=a");
    let shadow = format!("@shadow=r;{hashed}");
    let matched = ["worker-7", "@jwt/sub=s:alice", &hashed, &composed, &shadow];
    let partly = format!("{hashed};x-team=a");
    let whole = format!("~{hash}");
    let refused = [
        "x-tenant=acme",
        "@cookie/sid=a",
        "@query/account=a",
        "@path=/a",
        "@template/id=a",
        "@host=a",
        "@metadata/a/b=a",
        "@attribute/request.path=a",
        "@addressed=a",
        &partly,
        &whole,
    ];
    let policy = Policy::parse(POLICY).unwrap();
    for (keys, expected) in [(&matched[..], true), (&refused, false)] {
        for key in keys {
            let digits = format!("#{}", Subject::of(key));
            let stored = stored(&[("m", &digits, UNLIMITED)]);
            let overrides = Overrides::new(&policy, stored);
            let now = overrides.at(1_000);
            assert_eq!(now.find("m", key).is_some(), expected, "{key}");
            assert_eq!(now.find("m", "another"), None);
            assert_eq!(now.find("l", key), None, "of another limit");
        }
    }
}

#[test]
fn what_is_set_by_digits_comes_between_the_keys_own_in_the_store_and_in_the_policy() {
    let policy = Policy::parse(POLICY).unwrap();
    let digits = format!("#{}", Subject::of("a"));
    let ends = r#"{"quota":9,"until":"1970-01-01T00:00:02Z"}"#;
    let stored = stored(&[("l", "a", ends), ("l", &digits, r#"{"quota":7}"#)]);
    let overrides = Overrides::new(&policy, stored);
    let at = |now_ms| quota(overrides.at(now_ms).find("l", "a"));
    assert_eq!((at(1_000), at(2_000)), (Some(9), Some(7)));
    let list = overrides.list(&policy, 2_000);
    let states: Vec<_> = list.iter().map(|one| (one.source, one.state)).collect();
    let hidden = (OverrideSource::Policy, OverrideState::Hidden);
    assert!(states.contains(&hidden), "{states:?}");
}

#[test]
fn what_is_set_for_all_keys_comes_first_except_before_blocks() {
    let policy = POLICY.replace("  m: {", "  m: { enforce: false,");
    let policy = Policy::parse(&policy).unwrap();
    let ends = r#"{"unlimited":true,"until":"1970-01-01T00:00:02Z"}"#;
    let digits = format!("#{}", Subject::of("d"));
    let stored = stored(&[
        ("l", "", ends),
        ("m", "c", BLOCKED),
        ("m", &digits, BLOCKED),
    ]);
    let overrides = Overrides::new(&policy, stored);
    let at = |now_ms| overrides.at(now_ms);
    let unlimited = Some((&Effect::Unlimited, Some(1_000)));
    assert_eq!(at(1_000).find("l", "a"), unlimited);
    assert_eq!(at(1_000).find("l", "anybody"), unlimited);
    assert_eq!(
        at(1_000).find("l", "b"),
        Some((&Effect::Blocked, Some(4_000)))
    );
    assert_eq!(quota(at(2_000).find("l", "a")), Some(50), "it has ended");
    assert_eq!(at(2_000).find("l", "anybody"), None);
    assert_eq!(
        at(9_000).find("m", "anybody"),
        Some((&Effect::Unlimited, None))
    );
    for blocked in ["c", "d"] {
        assert_eq!(at(9_000).find("m", blocked), Some((&Effect::Blocked, None)));
    }
    assert_eq!(overrides.counts(&policy, 1_000)["unlimited"], 2);
    let list = overrides.list(&policy, 1_000);
    let all: Vec<_> = list.iter().filter(|one| one.all_keys).collect();
    assert_eq!((all.len(), all[0].source), (2, OverrideSource::Store));
    assert_eq!(
        (&*all[1].limit, all[1].source),
        ("m", OverrideSource::Policy)
    );
    assert!(all.iter().all(|one| one.state == OverrideState::InForce));
}
