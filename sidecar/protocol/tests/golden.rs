//! The golden files are the contract: what stands in them is read, and written again byte by byte.

use sluicegate_protocol::{Answer, Code, MAX_ENTRIES, Request, read_decisions};

const REQUEST: &str = include_str!("golden/request.json");
const ANSWER: &str = include_str!("golden/answer.json");

#[test]
fn a_request_is_read_and_written_again_unchanged() {
    let request: Request<'_> = serde_json::from_str(REQUEST).unwrap();
    assert_eq!(serde_json::to_string(&request).unwrap(), REQUEST.trim_end());
    let one_by_one: Vec<_> = read_decisions(REQUEST.as_bytes())
        .unwrap()
        .decisions
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(one_by_one, request.decisions);
}

#[test]
fn an_answer_is_read_and_written_again_unchanged() {
    let answer: Answer<'_> = serde_json::from_str(ANSWER).unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), ANSWER.trim_end());
}

#[test]
fn f15_an_older_sidecar_does_not_name_its_instance() {
    let older = ANSWER.replace("\"instance\":5629499534213120,", "");
    assert_ne!(older, ANSWER);
    let answer: Answer<'_> = serde_json::from_str(&older).unwrap();
    assert_eq!((answer.instance, answer.epoch), (0, 3));
    assert_eq!(serde_json::to_string(&answer).unwrap(), older.trim_end());
}

#[test]
fn a_newer_sidecar_may_add_fields_to_an_answer() {
    let newer = ANSWER.replace("\"quota\"", "\"lease\":{\"units\":5},\"quota\"");
    let answer: Answer<'_> = serde_json::from_str(&newer).unwrap();
    assert_eq!(answer, serde_json::from_str(ANSWER).unwrap());
}

#[test]
fn a_bad_decision_has_its_own_error_and_does_not_spoil_the_others() {
    let good = r#"{"checks":[{"limit":"a","key":"k"}]}"#;
    let many = vec![r#"{"limit":"a","key":"k"}"#; 33].join(",");
    let long = "k".repeat(513);
    let cases = [
        (
            r#"{"checks":[{"limit":"a","key":"k","cots":5}]}"#.to_owned(),
            Code::MalformedEntry,
            "cots",
        ),
        (
            r#"{"checks":[{"limit":"a","key":"k","cost":-1}]}"#.to_owned(),
            Code::MalformedEntry,
            "-1",
        ),
        (
            r#"{"checks":[{"limit":"a","key":"k","cost":1.5}]}"#.to_owned(),
            Code::MalformedEntry,
            "1.5",
        ),
        (
            r#"{"checks":[{"limit":"a"}]}"#.to_owned(),
            Code::MalformedEntry,
            "key",
        ),
        (r#""nonsense""#.to_owned(), Code::MalformedEntry, "nonsense"),
        (r#"{"checks":[]}"#.to_owned(), Code::NoChecks, "checks"),
        (
            format!(r#"{{"checks":[{many}]}}"#),
            Code::TooManyChecks,
            "33",
        ),
        (
            r#"{"checks":[{"limit":"a","key":""}]}"#.to_owned(),
            Code::EmptyKey,
            "checks[0].key",
        ),
        (
            format!(r#"{{"checks":[{{"limit":"a","key":"{long}"}}]}}"#),
            Code::KeyTooLong,
            "513",
        ),
    ];
    for (bad, code, named) in cases {
        let body = format!(r#"{{"decisions":[{good},{bad},{good}]}}"#);
        let read = read_decisions(body.as_bytes()).unwrap().decisions;
        assert!(read[0].is_ok() && read[2].is_ok(), "{bad}");
        let problem = read[1].as_ref().unwrap_err();
        assert_eq!(problem.code, code, "{bad}");
        assert!(problem.message.contains(named), "{bad}: {problem}");
    }
}

#[test]
fn a_body_of_no_use_is_refused_as_a_whole() {
    let one = r#"{"checks":[{"limit":"a","key":"k"}]}"#;
    let too_many = format!(
        r#"{{"decisions":[{}]}}"#,
        vec![one; MAX_ENTRIES + 1].join(",")
    );
    let cases: [(&[u8], Code); 7] = [
        (b"", Code::MalformedJson),
        (b"{", Code::MalformedJson),
        (b"[]", Code::MalformedJson),
        (br#"{"decision":[]}"#, Code::MalformedJson),
        (b"\xff\xfe", Code::MalformedJson),
        (too_many.as_bytes(), Code::TooManyEntries),
        (&[b' '; (1 << 20) + 1], Code::BodyTooLarge),
    ];
    for (body, code) in cases {
        assert_eq!(read_decisions(body).unwrap_err().code, code);
    }
}

#[test]
fn a_code_is_spelt_the_same_in_json_and_in_labels() {
    for code in [
        Code::MalformedJson,
        Code::BodyTooLarge,
        Code::TooManyEntries,
        Code::MalformedEntry,
        Code::NoChecks,
        Code::TooManyChecks,
        Code::UnknownLimit,
        Code::CostOverLimit,
        Code::EmptyKey,
        Code::KeyTooLong,
    ] {
        assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
    }
}
