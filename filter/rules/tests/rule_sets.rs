//! Several rule sets at once: a request is matched, counted and answered by the set that it was evaluated with, whatever has
//! taken its place meanwhile.

use std::rc::Rc;

use crate::support::answered::{answer, answered, field, reply, verdict};
use crate::support::{Rules, counted, get, question, rules};
use sluicegate_certificates::CallTimes;
use sluicegate_rules::{DenialCache, Question, Taken, question_body, read_answer};

/// Its only limit is the second one of its only rule.
fn earlier() -> Rules {
    rules(
        r#"{"name":"earlier","when_unavailable":"deny","reply":{"headers":"legacy"},
            "checks":[{"limit":"unused","key":[{"header":"x-none"}]},{"limit":"per-key","key":[{"constant":"c"}]}]}"#,
    )
}

/// Another rule comes first, and one that has a name as before says something else.
fn later() -> Rules {
    rules(
        r#"{"name":"first","when_unavailable":"allow","checks":[{"limit":"other","key":[{"header":"x-none"}]}]},
           {"name":"later","when_unavailable":"allow","reply":{"body":"later","headers":"none"},
            "checks":[{"limit":"per-key","key":[{"constant":"c"}]}]}"#,
    )
}

fn body_of(question: &Question) -> String {
    let body = question_body([(question, &Taken::default())], &[], Vec::new(), None);
    String::from_utf8(body).unwrap()
}

#[test]
fn a_question_is_asked_counted_and_answered_by_the_set_that_it_was_evaluated_with() {
    let mut in_force = earlier();
    let waits = question(&in_force, &get("/", &[]));
    let replaced = Rc::downgrade(&in_force.set);
    in_force = later();
    let new = question(&in_force, &get("/", &[]));
    for asked in [&waits, &new] {
        assert!(body_of(asked).contains(r#"[{"limit":"per-key","key":"@constant=c""#));
    }
    let denied = answer(&[verdict("denied")]);
    let (conclusion, of_waits) = answered(&waits, &denied);
    let to_waits = reply(conclusion);
    assert_eq!(
        &*to_waits.details,
        "sluicegate_denied{rule=earlier,limit=per-key}"
    );
    assert_eq!(field(&to_waits.headers, "x-ratelimit-limit"), Some("10"));
    assert!(to_waits.body.starts_with(b"{"));
    let of_limit = |rule: &str| format!("rule=.={rule};.;limit=.=per-key;.;rule_limit_denied");
    assert_eq!(of_waits, ["denied", &of_limit("earlier")]);
    assert!(counted(&in_force).is_empty(), "counted by the other set");
    let (conclusion, of_new) = answered(&new, &denied);
    let to_new = reply(conclusion);
    assert_eq!(
        &*to_new.details,
        "sluicegate_denied{rule=later,limit=per-key}"
    );
    assert_eq!(
        (field(&to_new.headers, "x-ratelimit-limit"), &*to_new.body),
        (None, &b"later"[..])
    );
    assert_eq!(of_new, ["denied", &of_limit("later")]);
    // Without an answer, each does what its own rules say.
    let statuses = [&waits, &new].map(|asked| {
        matches!(
            answered(asked, "").0,
            sluicegate_rules::Conclusion::Answer(_)
        )
    });
    assert_eq!(statuses, [true, false]);
    assert!(replaced.upgrade().is_some());
    drop(waits);
    assert!(
        replaced.upgrade().is_none(),
        "the set outlives its last request"
    );
}

#[test]
fn a_denial_of_one_set_is_repeated_for_another_one_that_asks_for_the_same() {
    let (earlier, later) = (earlier(), later());
    let [first, second] = [&earlier, &later].map(|set| question(set, &get("/", &[])));
    let denied = verdict("denied").replace('}', r#","hold_ms":60000}"#);
    let body = answer(&[denied]);
    let answer = read_answer(body.as_bytes(), 1).unwrap();
    let mut denials = DenialCache::default();
    let times = CallTimes {
        sent_us: 1,
        answered_us: 1_000,
    };
    denials.learn(&first, u64::MAX, &answer.verdicts, times);
    drop((earlier, first));
    let cached = denials.covering(&second, 2_000).unwrap();
    let (conclusion, _) = second.conclude(Ok(&cached), &|| 1_795_758_000);
    assert_eq!(reply(conclusion).body, b"later");
}
