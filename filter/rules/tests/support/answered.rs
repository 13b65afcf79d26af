//! Made-up answers of the sidecar, and the conclusions from them.

use sluicegate_rules::{Conclusion, HeaderFields, Question, Reply, VerdictError, read_answer};

use super::{Rules, counted, rules};

/// One rule for all requests, with a limit `per-key`.
pub fn rule(more: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","checks":[{{"limit":"per-key","key":[{{"constant":"c"}}]}}]{more}}}"#
    ))
}

/// The conclusion from an answer with this body, and the names of the counters that it increments.
pub fn answered(question: &Question, body: &str) -> (Conclusion, Vec<String>) {
    let verdicts = read_answer(body.as_bytes(), question.decisions());
    let verdicts = verdicts
        .as_ref()
        .map(|answer| answer.verdicts.as_slice())
        .map_err(VerdictError::clone);
    let (conclusion, _) = question.conclude(verdicts, &|| 1_795_758_000);
    (conclusion, counted(&question.rules))
}

pub fn verdict(outcome: &str) -> String {
    format!(
        r#"{{"outcome":"{outcome}","check":0,"limit":"<b>\r\nx: y","quota":10,"window_ms":60000,"remaining":2,"reset_ms":59001,"retry_after_ms":1001}}"#
    )
}

pub fn answer(verdicts: &[String]) -> String {
    format!(r#"{{"epoch":1,"verdicts":[{}]}}"#, verdicts.join(","))
}

/// The value of the first field with this name.
pub fn field<'a>(headers: &'a HeaderFields, name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find_map(|(given, value)| (given == name).then_some(value))
}

pub fn reply(conclusion: Conclusion) -> Reply {
    match conclusion {
        Conclusion::Answer(reply) => reply,
        other => panic!("{other:?}"),
    }
}
