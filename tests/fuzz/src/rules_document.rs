//! The rules that a sidecar pushes: arbitrary bytes are a document or are refused, the work for a line is bounded, and the sets
//! of a document that is accepted answer requests without a panic.

use std::rc::Rc;
use std::sync::LazyLock;

use serde_json::json;
use sluicegate_rules::config::document::{Document, MAX_BYTES, MAX_EXPRESSIONS, MAX_LINE_BYTES};
use sluicegate_rules::config::{self, free_unused_expressions};
use sluicegate_rules::{ConfigError, RuleSet, Settings};

use crate::configuration;
use crate::input::Input;
use crate::support::{FakeRequest, Rules, get, request};

/// The sets that the filter may run.
const NAMES: [&str; 2] = ["a", "b"];

static REQUESTS: LazyLock<Vec<FakeRequest>> = LazyLock::new(|| {
    let headers: &[(&str, &[u8])] = &[(":authority", b"api.example.com"), ("x-api-key", b"k")];
    vec![
        get("/", &[]),
        request("POST", "/v1/a%2F..;x/b?q=1", headers),
    ]
});

pub fn run(data: &[u8]) {
    // Those of an earlier input would be known.
    free_unused_expressions(usize::MAX);
    let mut input = Input::new(data);
    let kind = input.byte();
    let sets = 1 + usize::from(kind & 1);
    let rest = input.rest();
    let bytes = match kind % 8 {
        // A head that fits is not found by chance.
        0..6 => {
            let lines = rest.split_inclusive(|byte| *byte == b'\n').count();
            let head = format!(
                "{{\"format\":1,\"digest\":\"a41c09d2e7f3\",\"instance\":1,\"lines\":{lines}}}\n"
            );
            [head.as_bytes(), rest].concat()
        }
        _ => rest.to_vec(),
    };
    let names: Vec<String> = NAMES[..sets].iter().map(|&name| name.to_owned()).collect();
    match compiled(&bytes, &names) {
        Ok(sets) => sets.into_iter().for_each(answers),
        Err(error) => {
            let text = error.to_string();
            assert!(!error.field.is_empty() && !error.why.is_empty(), "{text}");
            assert!(text.len() < 4_000 + 20 * MAX_LINE_BYTES, "{text}");
        }
    }
}

fn compiled(bytes: &[u8], names: &[String]) -> Result<Vec<Rc<RuleSet>>, ConfigError> {
    let mut document = Document::new(bytes.to_vec())?;
    document.check()?;
    assert!(bytes.len() <= MAX_BYTES);
    let (mut lines, mut expressions) = (0, 0);
    let mut rest = bytes
        .splitn(2, |byte| *byte == b'\n')
        .nth(1)
        .unwrap_or_default();
    while document.compile_line()? {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        assert!(line.len() < MAX_LINE_BYTES, "{} bytes", line.len());
        rest = rest.get(line.len() + 1..).unwrap_or_default();
        lines += 1;
        expressions += usize::from(line.starts_with(b"{\"regex\":"));
    }
    assert!(rest.is_empty(), "{lines} lines were read");
    assert!(expressions <= MAX_EXPRESSIONS, "{expressions}");
    let (said, digest) = (document.head.lines, document.head.digest.len());
    let sets = document.finish(names)?;
    assert_eq!((said, digest, sets.len()), (lines, 12, names.len()));
    Ok(sets)
}

fn settings() -> Settings {
    let configuration = json!({ "version": 2, "sidecar": { "cluster": "c" } });
    config::settings(configuration).expect("a configuration").0
}

fn answers(set: Rc<RuleSet>) {
    assert!((1..=256).contains(&set.count()), "{}", set.count());
    let settings = settings();
    let rules = Rules { settings, set };
    REQUESTS
        .iter()
        .for_each(|request| configuration::ask(&rules, request));
}
