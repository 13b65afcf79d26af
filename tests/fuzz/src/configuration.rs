//! The filter's configuration, and rules beside it as a sidecar pushes them: arbitrary bytes are accepted or an error, JSON and
//! `google.protobuf.Struct` are read alike, and what is accepted answers requests without a panic.

use std::sync::LazyLock;

use prost::Message;
use prost_types::{ListValue, Struct, Value as Protobuf, value::Kind};
use serde_json::Value;
use sluicegate_rules::config::{fingerprint, json};
use sluicegate_rules::{Evaluation, Taken, question_body};

use crate::support::{FakeRequest, Rules, get, request};

/// Numbers of a struct are doubles, which hold no larger integers.
const EXACT: u64 = 1 << 53;
/// Deeper values exceed the limits of JSON's or protobuf's reader, which differ.
const MAX_DEPTH: usize = 24;

static REQUESTS: LazyLock<Vec<FakeRequest>> = LazyLock::new(|| {
    let headers: &[(&str, &[u8])] = &[
        (":authority", b"api.example.com"),
        ("x-api-key", b"k"),
        ("x-cost", b"7"),
        ("x-plan", b"gold"),
        ("cookie", b"s=1; t=\"2\""),
        ("authorization", b"Basic YTpi"),
        ("x-forwarded-for", b"203.0.113.9, 2001:db8::1"),
        ("content-type", b"application/grpc"),
    ];
    vec![
        get("/", &[]),
        request("POST", "/v1/a%2F..;x/b?q=1&q=2;r", headers),
        FakeRequest::default(),
    ]
});

pub fn run(data: &[u8]) {
    let value = json(data);
    let read = json(data).and_then(Rules::read);
    if let Err(error) = &read {
        let text = error.to_string();
        assert!(!error.field.is_empty() && !error.why.is_empty(), "{text}");
        assert!(text.len() < 4_000 + 20 * data.len(), "{text}");
    }
    if let Ok(value) = value {
        same_as_struct(&value, read.is_ok());
    }
    if let Ok(rules) = read {
        REQUESTS.iter().for_each(|request| ask(&rules, request));
    }
}

/// A mesh may pass the same configuration in the other form.
fn same_as_struct(value: &Value, accepted: bool) {
    let Value::Object(fields) = value else {
        return;
    };
    let Some(structure) = structure(fields, MAX_DEPTH) else {
        return;
    };
    // Without fields it has no bytes, and is no struct.
    if fields.is_empty() {
        return;
    }
    let bytes = structure.encode_to_vec();
    let again = json(&bytes).expect("a struct");
    assert_eq!(fingerprint(&again), fingerprint(value), "{value}");
    assert_eq!(Rules::read(again).is_ok(), accepted, "{value}");
}

/// `None` if a struct cannot hold it exactly.
fn structure(fields: &serde_json::Map<String, Value>, depth: usize) -> Option<Struct> {
    let one = |(name, value): (&String, &Value)| Some((name.clone(), protobuf(value, depth)?));
    let fields = fields.iter().map(one).collect::<Option<_>>()?;
    Some(Struct { fields })
}

fn protobuf(value: &Value, depth: usize) -> Option<Protobuf> {
    let inner = depth.checked_sub(1)?;
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(flag) => Kind::BoolValue(*flag),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Number(number) => {
            let small = |number: u64| number < EXACT;
            let exact = number.as_u64().map(small);
            let exact = exact.or_else(|| number.as_i64().map(|n| small(n.unsigned_abs())));
            // A double is one in both forms.
            Kind::NumberValue(exact.unwrap_or(true).then(|| number.as_f64())??)
        }
        Value::Array(values) => {
            let values = values.iter().map(|value| protobuf(value, inner));
            let values = values.collect::<Option<_>>()?;
            Kind::ListValue(ListValue { values })
        }
        Value::Object(fields) => Kind::StructValue(structure(fields, inner)?),
    };
    Some(Protobuf { kind: Some(kind) })
}

/// What any request through any rule set keeps to.
pub fn ask(rules: &Rules, request: &FakeRequest) {
    match rules.evaluate(request) {
        Evaluation::Pass => {}
        Evaluation::Refuse(reply) => {
            assert!((400..500).contains(&reply.status), "{reply:?}");
            crate::answer::is_sound(&reply.headers);
        }
        Evaluation::Ask(question) | Evaluation::NoVerdict(question, _) => {
            let shadows = question.shadows.iter().flat_map(|shadow| &shadow.checks);
            for check in question.checks.iter().chain(shadows) {
                assert!((1..=256).contains(&check.key.len()), "{}", check.key);
                let printable = |byte: u8| (0x21..0x7f).contains(&byte);
                assert!(check.key.bytes().all(printable), "{}", check.key);
                assert!(!question.limit_name(check).is_empty());
            }
            if question.checks.len() > sluicegate_protocol::MAX_CHECKS {
                return;
            }
            let body = question_body([(&question, &Taken::default())], &[], Vec::new(), None);
            // The queue counts with the load to stay under the sidecar's bound.
            assert!(body.len() <= 64 + question.load().bytes, "{question:?}");
            let read = sluicegate_protocol::read_decisions(&body).expect("a body");
            let valid = read.decisions.iter().all(Result::is_ok);
            assert!(valid, "{}", String::from_utf8_lossy(&body));
            assert_eq!(read.decisions.len(), question.decisions());
        }
    }
}
