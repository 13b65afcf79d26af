//! Answers of a sidecar that a test makes up, and what becomes of a request.

use sluicegate_rules::{Conclusion, Question, Reply, Rules, Unusable, read_answer};

use super::rules;

/// One rule for all, with a limit `per-key`.
pub fn rule(more: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","checks":[{{"limit":"per-key","key":[{{"constant":"c"}}]}}]{more}}}"#
    ))
}

/// Asks, is answered with this body, and tells what was counted.
pub fn answered(rules: &Rules, question: &Question, body: &str) -> (Conclusion, Vec<String>) {
    let verdicts = read_answer(body.as_bytes(), question.decisions());
    let verdicts = verdicts
        .as_ref()
        .map(|answer| answer.verdicts.as_slice())
        .map_err(Unusable::clone);
    let mut counted = Vec::new();
    let (conclusion, _) = rules.conclude(question, verdicts, &mut |place| {
        counted.push(rules.counters().names()[place].clone());
    });
    (conclusion, counted)
}

pub fn verdict(outcome: &str) -> String {
    format!(
        r#"{{"outcome":"{outcome}","check":0,"limit":"<b>\r\nx: y","quota":10,"window_ms":60000,"remaining":2,"reset_ms":59001,"retry_after_ms":1001}}"#
    )
}

pub fn answer(verdicts: &[String]) -> String {
    format!(r#"{{"epoch":1,"verdicts":[{}]}}"#, verdicts.join(","))
}

pub fn reply(conclusion: Conclusion) -> Reply {
    match conclusion {
        Conclusion::Answer(reply) => reply,
        other => panic!("{other:?}"),
    }
}
