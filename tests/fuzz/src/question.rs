//! The wire, from the filter to the sidecar: what the filter writes is what the sidecar reads; arbitrary bytes are read or
//! refused, and what is read can be written and read again.

use std::rc::Rc;

use serde_json::to_vec;
use sluicegate_protocol::{
    CachedDenials, Check, Decision, FilterInfo, MAX_CHECKS, MAX_DENIED_COUNT, MAX_KEY_BYTES,
    MAX_WITHIN_MS, PartReport, Request, Resets, Settles, read_decisions, read_remove_override,
    read_resets, read_set_override, read_settles,
};
use sluicegate_rules::{Question, ResolvedCheck, RuleSet, Shadow, Taken, question_body};

use crate::input::Input;
use crate::{everything, question_of, support};

thread_local! {
    static RULES: Rc<RuleSet> = support::rules(everything::RULES).set;
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 8 {
        0 | 1 => any_decisions(input.rest()),
        2 => any_settles(input.rest()),
        3 => any_resets(input.rest()),
        4 => any_override(input.rest()),
        5 => any_header(input.rest()),
        6 => written_by_anybody(&mut input),
        _ => written_by_the_filter(&mut input),
    }
}

fn any_decisions(body: &[u8]) {
    let read = match read_decisions(body) {
        Ok(read) => read,
        Err(problem) => return is_short(&problem.to_string(), body),
    };
    let mut valid = Vec::new();
    for decision in read.decisions {
        match decision {
            Ok(decision) => valid.push(decision),
            Err(problem) => is_short(&problem.to_string(), body),
        }
    }
    let request = Request {
        decisions: valid,
        denied: read.denied,
        settles: read.settles,
        wait_ms: Some(read.wait_ms).filter(|wait_ms| *wait_ms > 0),
    };
    reads_as(&request);
}

/// An error may quote what a client sent, but must not multiply it.
fn is_short(error: &str, body: &[u8]) {
    assert!(error.len() <= 1_000 + 2 * body.len(), "{error}");
}

/// The sidecar reads what was written, and each decision has the shape that it must have.
fn reads_as(request: &Request<'_>) {
    let body = to_vec(request).expect("JSON");
    let read = read_decisions(&body).expect("the same request");
    assert_eq!(read.decisions.len(), request.decisions.len());
    for (read, written) in read.decisions.iter().zip(&request.decisions) {
        let keys = || written.checks.iter().map(|check| check.key.len());
        let mut most = written.checks.iter().filter_map(|check| check.most);
        let mut within = written.checks.iter().filter_map(|check| check.within_ms);
        let valid = (1..=MAX_CHECKS).contains(&written.checks.len())
            && keys().all(|bytes| (1..=MAX_KEY_BYTES).contains(&bytes))
            && within.all(|ms| (1..=MAX_WITHIN_MS).contains(&ms))
            && most.all(|percent| (1..=100).contains(&percent));
        match read {
            Ok(read) => assert!(valid && read == written, "{read:?} {written:?}"),
            Err(problem) => assert!(!valid, "{problem} {written:?}"),
        }
    }
    let counted = |denied: &&CachedDenials<'_>| {
        let bytes = denied.key.as_ref().map_or(1, |key| key.len());
        denied.count <= MAX_DENIED_COUNT && (1..=MAX_KEY_BYTES).contains(&bytes)
    };
    let written: Vec<_> = request.denied.iter().filter(counted).collect();
    assert_eq!(read.denied.iter().collect::<Vec<_>>(), written);
}

fn any_settles(body: &[u8]) {
    if let Ok(read) = read_settles(body) {
        let settles = read.into_iter().flatten().collect();
        let written = Settles { settles };
        let body = to_vec(&written).expect("JSON");
        let again = read_settles(&body).expect("a list").into_iter();
        assert_eq!(again.collect::<Result<_, _>>(), Ok(written.settles));
    }
}

fn any_resets(body: &[u8]) {
    if let Ok(read) = read_resets(body) {
        let resets = read.into_iter().flatten().collect();
        let written = Resets { resets };
        let body = to_vec(&written).expect("JSON");
        let again = read_resets(&body).expect("a list").into_iter();
        assert_eq!(again.collect::<Result<_, _>>(), Ok(written.resets));
    }
}

fn any_override(body: &[u8]) {
    match read_set_override(body) {
        Ok(set) => {
            let again = to_vec(&set).expect("JSON");
            assert_eq!(read_set_override(&again).expect("an override"), set);
            assert!(!set.terms.to_string().is_empty());
        }
        Err(problem) => is_short(&problem.to_string(), body),
    }
    if let Ok(remove) = read_remove_override(body) {
        let again = to_vec(&remove).expect("JSON");
        assert_eq!(read_remove_override(&again).expect("a removal"), remove);
    }
}

fn any_header(value: &[u8]) {
    let Ok(value) = str::from_utf8(value) else {
        return;
    };
    if let Some(info) = FilterInfo::read(value) {
        assert_eq!(info.to_string(), value);
    }
    if let Some(reports) = PartReport::read_all(value) {
        let written = PartReport::write_all(&reports);
        assert_eq!(PartReport::read_all(&written), Some(reports));
    }
}

/// With any texts, as curl may send them.
fn written_by_anybody(input: &mut Input<'_>) {
    let check = |input: &mut Input<'_>| Check {
        limit: input.text(20).into(),
        // Some are too long.
        key: input.text(40).repeat(1 + input.below(20)).into(),
        cost: input.number(),
        quota: input.maybe(Input::number),
        within_ms: input.maybe(Input::number),
        most: input.maybe(Input::number),
    };
    let decision = |input: &mut Input<'_>| Decision {
        checks: input.list(40, check),
        peek: input.flag(),
        receipt: input.flag(),
        shadow: input.maybe(|input| input.text(20).into()),
        traceparent: input.maybe(|input| input.text(60).into()),
    };
    let denied = |input: &mut Input<'_>| CachedDenials {
        limit: input.text(20).into(),
        shadow: input.maybe(|input| input.text(20).into()),
        key: input.maybe(|input| input.text(20).into()),
        count: input.number(),
    };
    reads_as(&Request {
        decisions: input.list(6, decision),
        denied: input.list(4, denied),
        settles: Vec::new(),
        wait_ms: None,
    });
}

fn written_by_the_filter(input: &mut Input<'_>) {
    let questions = input.list(5, question);
    let taken = Taken::default();
    let body = question_body(
        questions.iter().map(|one| (one, &taken)),
        &[],
        Vec::new(),
        None,
    );
    let read = read_decisions(&body).expect("a body");
    let mut decisions = read.decisions.into_iter();
    for question in &questions {
        let enforced = (!question.checks.is_empty()).then_some((&question.checks, None));
        let shadows = question.shadows.iter();
        let shadows =
            shadows.map(|shadow| (&shadow.checks, Some(question.rules.rule_name(shadow.rule))));
        let mut bytes = 2;
        for (checks, shadow) in enforced.into_iter().chain(shadows) {
            let read = decisions.next().expect("a decision").expect("a valid one");
            assert_eq!(read.shadow.as_deref(), shadow);
            let traceparent = question.traceparent.as_deref();
            let traceparent = traceparent.filter(|_| shadow.is_none());
            assert_eq!(read.traceparent.as_deref(), traceparent);
            assert!(!read.peek && !read.receipt);
            assert_eq!(read.checks.len(), checks.len());
            for (read, written) in read.checks.iter().zip(checks) {
                let limit = question.limit_name(written);
                assert_eq!((&*read.limit, &*read.key), (limit, written.key.as_str()));
                assert_eq!((read.cost, read.quota), (written.cost, written.quota));
            }
            bytes += to_vec(&read).expect("JSON").len() + 1;
        }
        // The queue's bound on a callout's bytes holds only if no question is larger than it says.
        let load = question.load();
        assert!(bytes <= 2 + load.bytes, "{bytes} {load:?} {question:?}");
        assert_eq!(load.decisions, question.decisions());
    }
    assert!(decisions.next().is_none());
}

/// As rules make them: keys are printable and need no escapes in JSON.
fn question(input: &mut Input<'_>) -> Question {
    let check = |input: &mut Input<'_>| ResolvedCheck {
        reserved: None,
        rule: input.below(2),
        limit: input.below(3),
        key: format!("k={}", "x".repeat(input.below(250))),
        cost: 1 + input.up_to(sluicegate_protocol::MAX_COST - 1),
        quota: input.maybe(Input::number),
    };
    let checks = |input: &mut Input<'_>| {
        let first = check(input);
        let mut checks = input.list(5, check);
        checks.push(first);
        checks
    };
    let shadow = |input: &mut Input<'_>| Shadow {
        rule: 2,
        checks: checks(input),
    };
    let checks = input.maybe(checks).unwrap_or_default();
    let mut question = question_of(RULES.with(Rc::clone), checks, input.list(3, shadow));
    question.grpc = input.flag();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    question.traceparent = input.flag().then(|| traceparent.to_owned());
    question
}
