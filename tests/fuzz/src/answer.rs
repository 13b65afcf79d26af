//! The wire, from the sidecar to the filter: what the sidecar writes is what the filter reads, and whatever an answer says, the
//! client gets a sound reply.

use std::rc::Rc;

use serde_json::to_vec;
use sluicegate_protocol::{Answer, Code, LeasePart, LimitStatus, Problem, Verdict, WithoutStore};
use sluicegate_rules::{
    Conclusion, HeaderFields, Headers, Question, ResolvedCheck, RuleSet, Shadow, VerdictError,
    WhenUnavailable, read_answer,
};

use crate::input::Input;
use crate::{question_of, rules_of, status_of};

/// Rules with every form of reply, and a shadow rule.
fn rules() -> Rc<RuleSet> {
    let both = r#","when_unavailable":"deny","reply":{"headers":"both","on_admitted":true}"#;
    let body = r#","when_unavailable":"allow","reply":{"body":"no","content_type":"text/html"}"#;
    let shadow = ("shadow", r#","shadow":true"#);
    let checks = r#"{"limit":"l","key":[{"constant":"c"}]},{"limit":"m","key":[{"constant":"d"}]}"#;
    rules_of(checks, [("both", both), ("body", body), shadow])
}

thread_local! {
    static RULES: Rc<RuleSet> = rules();
}

/// Stands in keys only, so that no reply may contain it.
const SECRET: &str = "key-of-the-subject";

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let question = question(&mut input);
    let decisions = question.decisions();
    let body = if input.flag() {
        input.rest().to_vec()
    } else {
        let written = answer(&mut input);
        let body = to_vec(&written).expect("JSON");
        let read = read_answer(&body, written.verdicts.len()).expect("the same answer");
        assert_eq!(read, written);
        assert!(read_answer(&body, written.verdicts.len() + 1).is_err());
        body
    };
    let read = read_answer(&body, decisions);
    if let Ok(answer) = &read {
        assert_eq!(answer.verdicts.len(), decisions);
        let again = to_vec(answer).expect("JSON");
        assert_eq!(read_answer(&again, decisions).as_ref(), Ok(answer));
    }
    let verdicts = read.as_ref().map(|answer| answer.verdicts.as_slice());
    conclude(&question, verdicts.map_err(VerdictError::clone));
}

fn conclude(question: &Question, verdicts: Result<&[Verdict<'_>], VerdictError>) {
    let first = verdicts.as_ref().ok().and_then(|verdicts| verdicts.first());
    let first = first.filter(|_| !question.checks.is_empty()).cloned();
    let (conclusion, _) = question.conclude(verdicts, &|| 0);
    let within = |status: &LimitStatus<'_>| status.check < question.checks.len();
    let denied = matches!(&first, Some(Verdict::Denied(status)) if within(status));
    match conclusion {
        Conclusion::Continue(headers, _) => {
            let admitted = matches!(&first, Some(Verdict::Admitted(status)) if within(status));
            assert!(question.checks.is_empty() || admitted, "{first:?}");
            is_sound(&headers);
        }
        Conclusion::Unmetered(why) => assert!(is_printable(&why) && !denied, "{why} {first:?}"),
        Conclusion::Answer(reply) => {
            assert_eq!(reply.status == 429, denied, "{first:?}");
            assert!([422, 429, 503].contains(&reply.status), "{reply:?}");
            is_sound(&reply.headers);
            let body = String::from_utf8(reply.body).expect("text");
            let details = &reply.details;
            let secret = body.contains(SECRET) || details.contains(SECRET);
            let word = is_printable(details) && !details.contains(' ');
            assert!(!secret && word, "{details}: {body}");
        }
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

/// Envoy can send these header fields as they are.
pub fn is_sound(fields: &HeaderFields) {
    let read = Headers::from_pairs(fields.to_pairs());
    let written: Vec<_> = fields.iter().collect();
    let read: Vec<_> = read.iter().collect();
    assert_eq!(read.len(), written.len());
    for ((name, value), read) in written.into_iter().zip(read) {
        assert_eq!(read, (name.as_bytes(), value.as_bytes()));
        let sound = is_printable(value) && !value.contains(SECRET);
        assert!(!name.is_empty() && sound, "{name}: {value}");
    }
}

fn question(input: &mut Input<'_>) -> Question {
    let check = |rule: usize| {
        move |input: &mut Input<'_>| ResolvedCheck {
            reserved: None,
            rule,
            limit: input.below(2),
            key: SECRET.to_owned(),
            cost: 1,
            quota: None,
        }
    };
    let rule = input.below(2);
    let shadow = |input: &mut Input<'_>| Shadow {
        rule: 2,
        checks: vec![check(2)(input)],
    };
    let checks = input.list(3, check(rule));
    let mut question = question_of(RULES.with(Rc::clone), checks, input.list(3, shadow));
    question.when_unavailable = input.pick(&[WhenUnavailable::Allow, WhenUnavailable::Deny]);
    question.grpc = input.flag();
    if question.decisions() == 0 {
        question.checks.push(check(rule)(input));
    }
    question
}

fn verdict(input: &mut Input<'_>) -> Verdict<'static> {
    const CODES: [Code; 4] = [
        Code::CostOverLimit,
        Code::UnknownLimit,
        Code::RequestTooLarge,
        Code::Unknown,
    ];
    let status = |input: &mut Input<'_>| {
        let check = input.pick(&[0, 1, 2, usize::MAX]);
        status_of(check, 20, input)
    };
    match input.byte() % 5 {
        0 => Verdict::Admitted(status(input)),
        1 | 2 => Verdict::Denied(status(input)),
        3 => Verdict::Unavailable {
            then: input.maybe(|input| input.pick(&[WithoutStore::Allow, WithoutStore::Deny])),
        },
        _ => Verdict::Error(Problem {
            code: input.pick(&CODES),
            message: input.text(40).into(),
            field: input.maybe(|input| input.text(20).into()),
        }),
    }
}

fn answer(input: &mut Input<'_>) -> Answer<'static> {
    let part = |input: &mut Input<'_>| LeasePart {
        id: input.number(),
        limit: input.text(10).into(),
        key: input.text(10).into(),
        units: input.number(),
        lasts_us: input.number(),
        quota: input.number(),
        window_ms: input.number(),
        remaining: input.number(),
        reset_ms: input.number(),
    };
    Answer {
        epoch: input.number(),
        instance: input.number(),
        verdicts: input.list(4, verdict),
        leases: input.list(3, part),
        rules: input.flag().then(|| input.text(13).into()),
        earlier: input.flag().then(|| input.text(20).into()),
        limits: input.flag().then(|| input.text(20).into()),
    }
}
