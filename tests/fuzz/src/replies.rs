//! What Redis answers: whatever it is, what is read of it is bounded and consistent.

use std::collections::{BTreeSet, HashMap};

use redis::{FromRedisValue, Value, parse_redis_value};
use sluicegate::policy::Endpoint;
use sluicegate::store::StoreError;
use sluicegate::store::answers::{Layout, Referral, SLOTS, primary_of, read_hash, slot, version};
use sluicegate_engine::script::{Operation, Reply};
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Guard, Settlement, Settlements};
use sluicegate_protocol::Whom;

use crate::input::Input;

/// Stands in addresses that a node points to; no message may contain it.
const SECRET: &str = "host-of-the-store";

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 6 {
        0 | 1 => {
            // Of any shape.
            if let Ok(answer) = parse_redis_value(input.rest()) {
                layout(&answer);
                all(answer);
            }
        }
        2 => layout(&Value::Array(input.list(64, row))),
        3 => script(&mut input),
        4 => overrides(&mut input),
        _ => redirection(&mut input),
    }
}

/// Everything else that reads an answer.
fn all(answer: Value) {
    if let Ok(Some(Endpoint::Unix(path))) = primary_of(answer.clone()) {
        panic!("{path:?}");
    }
    if let Ok(head) = Option::<Vec<u8>>::from_redis_value(answer.clone()) {
        assert!(version(head.as_deref()) < 1 << 56);
    }
    if let Ok(hash) = HashMap::from_redis_value(answer.clone()) {
        assert!(read_hash(&hash).entries.len() <= hash.len());
    }
    if let Ok(reply) = Vec::<u8>::from_redis_value(answer) {
        rows(&batch(2, 2), &reply);
    }
}

/// A row of CLUSTER SLOTS, more or less.
fn row(input: &mut Input<'_>) -> Value {
    let number = |input: &mut Input<'_>| match input.byte() % 8 {
        0 => Value::Int(i64::from_ne_bytes(input.number().to_ne_bytes())),
        1 => Value::Int(i64::from(SLOTS) - 1),
        2 => Value::Nil,
        _ => Value::Int(i64::try_from(input.below(usize::from(SLOTS))).unwrap_or(0)),
    };
    let host = match input.byte() % 8 {
        0 => Value::Nil,
        1 => Value::SimpleString(input.text(8)),
        2 => Value::BulkString(input.bytes(8).to_vec()),
        few => Value::BulkString(format!("h{few}").into_bytes()),
    };
    let port = Value::Int(i64::from(input.byte()) % 4 + 7_000);
    let mut row = vec![number(input), number(input), Value::Array(vec![host, port])];
    if input.byte() == 7 {
        row.swap_remove(input.below(3));
    }
    Value::Array(row)
}

fn layout(answer: &Value) {
    let asked = Endpoint::Tcp("asked".to_owned(), 1);
    let Ok(layout) = Layout::read(answer, &asked) else {
        return;
    };
    let rows = answer.as_sequence().expect("rows");
    let count = layout.primaries.len();
    assert!((1..=rows.len()).contains(&count));
    assert_eq!(layout.owners.len(), usize::from(SLOTS));
    let endpoints = layout.primaries.iter().map(|owner| &owner.endpoint);
    assert_eq!(endpoints.collect::<BTreeSet<_>>().len(), count);
    for (number, owner) in layout.primaries.iter().enumerate() {
        let of = |slot: u16| layout.owners[usize::from(slot)].map(usize::from);
        // All slots have tags, but for one or none.
        let slots = layout.owners.iter().flatten();
        let slots = slots.filter(|of| usize::from(**of) == number).count();
        let is_found = of(slot(&owner.tag)) == Some(number);
        assert!(is_found || owner.tag.is_empty() && slots <= 1, "{owner:?}");
    }
}

fn batch(decisions: usize, takes: usize) -> Batch {
    let bucket = |number: usize| Bucket {
        key: format!("sg:{{{number}}}:l:log:1s"),
        spec: BucketSpec {
            algorithm: Algorithm::SlidingLog,
            quota: 10,
            window_us: 1_000_000,
        },
    };
    crate::batch((0..takes).map(bucket).collect(), |_| 1, decisions)
}

/// What the script answers, or nearly so.
fn script(input: &mut Input<'_>) {
    let (decisions, takes) = (1 + input.below(8), 1 + input.below(4));
    let batch = batch(decisions, takes);
    let mut reply = Vec::new();
    for _ in 0..input.below(10) {
        let said = if input.flag() {
            i32::from(input.byte()) - 8
        } else {
            i32::from_be_bytes([input.byte(), input.byte(), input.byte(), input.byte()])
        };
        reply.extend(said.to_be_bytes());
        let rest = input.take(26);
        reply.extend(rest);
        reply.resize(reply.len() + 26 - rest.len(), 0xff);
    }
    reply.extend(input.bytes(29));
    rows(&batch, &reply);
}

fn rows(batch: &Batch, reply: &[u8]) {
    match batch.read(reply) {
        Ok(Reply {
            now_us,
            each: Some(each),
        }) => {
            assert!(now_us < 1 << 56);
            assert_eq!(each.len(), batch.decisions.len());
            for (outcome, decision) in each.iter().zip(&batch.decisions) {
                let Ok(outcome) = outcome else { continue };
                assert!(outcome.decided_by < decision.takes.len());
                assert!(outcome.at_us < 1 << 56 && outcome.retry_after_us < 1 << 56);
            }
        }
        Ok(Reply { now_us, each: None }) => assert!(reply.len() == 7 && now_us < 1 << 56),
        Err(error) => assert!(error.to_string().len() < 200, "{error}"),
    }
    let nothing = Settlements::default();
    assert!(nothing.read(reply).is_err() || reply.len() == 7);
    let one = Settlements {
        buckets: Vec::new(),
        each: vec![Settlement {
            guard: Guard::None,
            entries: Vec::new(),
        }],
    };
    match one.read(reply) {
        Ok(Reply {
            each: Some(each), ..
        }) => assert_eq!(each.len(), 1),
        Ok(Reply { each: None, .. }) => assert_eq!(reply.len(), 7),
        Err(error) => assert!(error.to_string().len() < 200, "{error}"),
    }
}

fn overrides(input: &mut Input<'_>) {
    let entries = input.list(16, |input| {
        let field = match input.byte() % 4 {
            0 => b":".to_vec(),
            1 => input.bytes(16).to_vec(),
            _ => format!("l:{}", input.text(4)).into_bytes(),
        };
        let mut state = input.bytes(12).to_vec();
        if input.flag() {
            state.resize(7, 0);
            state.extend(br#"{"unlimited":true,"until":"2026-11-22T03:00:0"#);
            state.extend(input.bytes(8));
        }
        (field, state)
    });
    let hash: HashMap<_, _> = entries.into_iter().collect();
    let read = read_hash(&hash);
    assert!(read.version < 1 << 56);
    for (limit, whom) in read.entries.keys() {
        let field = match whom {
            Whom::Key(key) => format!("{limit}:{key}"),
            Whom::Subject(digits) => format!("{limit}#:{digits}"),
            Whom::AllKeys(_) => format!("{limit}*:"),
        };
        assert!(hash.contains_key(field.as_bytes()));
    }
}

/// An error, which may point to another node.
fn redirection(input: &mut Input<'_>) {
    let kind = input.pick(&["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "ERR", ""]);
    let more = input.text(64);
    let to = input.pick(&["", "7 host-of-the-store:7000", "7 :7000", "70000 h:70000"]);
    let line = format!("-{kind} {to}{more}\r\n").replace("\n", "");
    let line = format!("{}\r\n", line.trim_end());
    let answer = parse_redis_value(line.as_bytes());
    let Some(error) = answer.ok().and_then(|answer| answer.extract_error().err()) else {
        return;
    };
    let error = StoreError::from(error);
    let asked = Endpoint::Tcp("asked".to_owned(), 1);
    let referral = Referral::of(&error, &asked);
    match &referral {
        Some(Referral::Moved(to) | Referral::Ask(to)) => {
            assert!(matches!(kind, "MOVED" | "ASK"));
            assert!(matches!(to, None | Some(Endpoint::Tcp(..))));
            assert!(!error.to_string().contains(SECRET), "{error}");
            if let Some(Endpoint::Tcp(host, _)) = to {
                assert!(!host.is_empty() && host != "?");
            }
        }
        Some(Referral::Apart) => assert_eq!(kind, "TRYAGAIN"),
        Some(Referral::Later) => assert_eq!(kind, "CLUSTERDOWN"),
        None => {}
    }
}
