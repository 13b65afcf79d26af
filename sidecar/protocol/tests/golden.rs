//! The golden files are the contract: what stands in them is read, and written again byte by byte.

use sluicegate_protocol::{Answer, Code, MAX_DENIED_COUNT, MAX_ENTRIES, Request, read_decisions};

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
fn an_older_sidecar_does_not_name_its_instance() {
    let older = ANSWER.replace("\"instance\":5629499534213120,", "");
    assert_ne!(older, ANSWER);
    let answer: Answer<'_> = serde_json::from_str(&older).unwrap();
    assert_eq!((answer.instance, answer.epoch), (0, 3));
    let newer: Answer<'_> = serde_json::from_str(ANSWER).unwrap();
    assert_ne!(newer.version(), answer.version());
    assert_eq!(newer.version().instance, 5_629_499_534_213_120);
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
    let table = r#"
        malformed_entry | cots | {"checks":[{"limit":"a","key":"k","cots":5}]}
        malformed_entry | -1 | {"checks":[{"limit":"a","key":"k","cost":-1}]}
        malformed_entry | 1.5 | {"checks":[{"limit":"a","key":"k","cost":1.5}]}
        malformed_entry | not an integer | {"checks":[{"limit":"a","key":"k","quota":1.5}]}
        malformed_entry | key | {"checks":[{"limit":"a"}]}
        malformed_entry | not an object | "nonsense"
        no_checks | checks | {"checks":[]}
        too_many_checks | 33 | {"checks":[MANY]}
        empty_key | checks[0].key | {"checks":[{"limit":"a","key":""}]}
        key_too_long | 513 | {"checks":[{"limit":"a","key":"LONG"}]}
    "#;
    for [code, named, bad] in rows(table) {
        let bad = bad.replace("MANY", &many).replace("LONG", &long);
        let body = format!(r#"{{"decisions":[{good},{bad},{good}]}}"#);
        let read = read_decisions(body.as_bytes()).unwrap().decisions;
        assert!(read[0].is_ok() && read[2].is_ok(), "{bad}");
        let problem = read[1].as_ref().unwrap_err();
        assert_eq!(serde_json::json!(problem.code), code, "{bad}");
        assert!(problem.message.contains(named), "{bad}: {problem}");
    }
}

/// The rows of a table: its cells, without the space around them.
fn rows<const CELLS: usize>(table: &str) -> impl Iterator<Item = [&str; CELLS]> {
    let rows = table.lines().filter(|row| !row.trim().is_empty());
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    })
}

/// The sidecar's own reading; without the feature the field is not known.
#[cfg(feature = "field-paths")]
#[test]
fn a_type_error_names_the_field_and_shows_no_key() {
    let good = r#"{"limit":"a","key":"k"}"#;
    let table = r#"
        {"limit":"a","key":"k","cost":-1} | `decisions[1].checks[1].cost`: -1 is not an integer of at least 0
        {"limit":"a","key":"k","cost":1.5} | `decisions[1].checks[1].cost`: 1.5 is not an integer of at least 0
        {"limit":"a","key":"k","cost":"secret"} | `decisions[1].checks[1].cost`: a string is not an integer of at least 0
        {"limit":"a","key":4711} | `decisions[1].checks[1].key`: a number is not a string
        {"limit":null,"key":"k"} | `decisions[1].checks[1].limit`: null is not a string
        {"limit":"a"} | `decisions[1].checks[1]`: missing field `key`
        "secret" | `decisions[1].checks[1]`: a string is not an object
        {"limit":"a","key":"k","cots":1} | `decisions[1].checks[1].cots`: unknown field `cots`, expected one of `limit`, `key`, `cost`, `quota`, `within_ms`, `most`
    "#;
    for [check, expected] in rows(table) {
        let body =
            format!(r#"{{"decisions":[{{"checks":[{good}]}},{{"checks":[{good},{check}]}}]}}"#);
        let read = read_decisions(body.as_bytes()).unwrap().decisions;
        let problem = read[1].as_ref().unwrap_err();
        assert_eq!(problem.message, expected, "{check}");
    }
    let table = r#"
        {"decisions":[{"checks":7}]} | `decisions[0].checks`: 7 is not a list
        {"decisions":["secret"]} | `decisions[0]`: a string is not an object
        {"decisions":[{"checks":[],"peek":"secret"}]} | `decisions[0].peek`: a string is not `true` or `false`
    "#;
    for [body, expected] in rows(table) {
        let read = read_decisions(body.as_bytes()).unwrap().decisions;
        assert_eq!(read[0].as_ref().unwrap_err().message, expected);
    }
    let table = r#"
        {"decisions":[],"denied":[{"limit":"a","count":-1}]} | `denied[0].count`: -1 is not an integer of at least 0
        {"decisions":7} | `decisions`: 7 is not a list
        [] | a list is not an object
        "secret" | a string is not an object
        {"decisions":[] | at line 1 column 15
        {"decisions":[]} x | at line 1 column 18
    "#;
    for [body, expected] in rows(table) {
        let problem = read_decisions(body.as_bytes()).unwrap_err();
        assert!(problem.message.ends_with(expected), "{body}: {problem}");
    }
    let body = r#"{"settles":[{"limit":"a","key":"k","receipt":"r","units":"x"}]}"#;
    let read = sluicegate_protocol::read_settles(body.as_bytes()).unwrap();
    let wanted = "`settles[0].units`: a string is not an integer of at least 0";
    assert_eq!(read[0].as_ref().unwrap_err().message, wanted);
}

#[test]
fn an_unusable_body_is_refused_as_a_whole() {
    let one = r#"{"checks":[{"limit":"a","key":"k"}]}"#;
    let too_many = format!(
        r#"{{"decisions":[{}]}}"#,
        vec![one; MAX_ENTRIES + 1].join(",")
    );
    let cases: [(&[u8], Code); 6] = [
        (b"", Code::MalformedJson),
        (b"{", Code::MalformedJson),
        (b"[]", Code::MalformedJson),
        (br#"{"decision":[]}"#, Code::MalformedJson),
        (b"\xff\xfe", Code::MalformedJson),
        (too_many.as_bytes(), Code::TooManyEntries),
    ];
    for (body, code) in cases {
        assert_eq!(read_decisions(body).unwrap_err().code, code);
    }
}

#[test]
fn an_implausible_count_of_cached_denials_is_ignored() {
    let body = |count: u64| {
        format!(
            r#"{{"decisions":[],"denied":[{{"limit":"a","count":{count}}},{{"limit":"b","count":7}}]}}"#
        )
    };
    let counted = |count: u64| {
        let body = body(count);
        let read = read_decisions(body.as_bytes()).unwrap();
        read.denied.iter().map(|denied| denied.count).sum::<u64>()
    };
    assert_eq!(counted(MAX_DENIED_COUNT), MAX_DENIED_COUNT + 7);
    assert_eq!(counted(MAX_DENIED_COUNT + 1), 7);
    assert_eq!(counted(u64::MAX), 7);
}

#[test]
fn a_settle_names_a_receipt_and_units() {
    let entry = |more: &str| format!(r#"{{"limit":"a","key":"k","receipt":"r"{more}}}"#);
    let most = r#","units":2147483648"#;
    let more = r#","units":2147483649"#;
    let both = r#","units":1,"within_ms":1"#;
    let unknown = r#","units":1,"taken_at_us":1"#;
    let never = r#","within_ms":0"#;
    let body = [most, more, "", unknown, both, never].map(entry);
    let body = format!(r#"{{"settles":[{}]}}"#, body.join(","));
    let read = sluicegate_protocol::read_settles(body.as_bytes()).unwrap();
    let settle = read[0].as_ref().unwrap();
    assert_eq!(
        (settle.receipt.as_ref(), settle.units),
        ("r", Some(1 << 31))
    );
    for (index, named) in [
        (1, "units"),
        (2, "units"),
        (3, "taken_at_us"),
        (4, "units"),
        (5, "within_ms"),
    ] {
        let error = read[index].as_ref().unwrap_err();
        assert_eq!(error.code, Code::MalformedEntry);
        assert!(error.message.contains(named), "{error}");
    }
}
