//! Keys and paths: no request makes the rules panic, keys are bounded, different subjects have different keys, and spellings of
//! one path never have different keys (docs/matching.md, "Paths").

use sluicegate_rules::Headers;

use crate::configuration::ask;
use crate::everything;
use crate::input::Input;
use crate::support::{self, FakeRequest, Rules, asked, checking, get, question};

thread_local! {
    static EVERYTHING: Rules = support::rules(everything::RULES);
    static OF_PATH: [Rules; 2] = of_path();
    static OF_HEADERS: Vec<[Rules; 2]> = of_headers();
}

/// One check for the whole path, and one for a part of it.
fn of_path() -> [Rules; 2] {
    let rule = r#"{"name":"r","match":{"path_template":"/{a}/**"},"when_unavailable":"allow",
        "checks":[{"limit":"l","key":[{"template":"a"}]}]}"#;
    let path = checking(r#"{"limit":"l","key":[{"path":true}]}"#);
    [path, support::rules(rule)]
}

/// Keys of 1 to 3 headers, hashed and plain.
fn of_headers() -> Vec<[Rules; 2]> {
    let rules = |count: usize, plain: bool| {
        let part = |n: usize| format!(r#"{{"header":"h{n}","plain":{plain}}}"#);
        let parts: Vec<_> = (0..count).map(part).collect();
        checking(&format!(r#"{{"limit":"l","key":[{}]}}"#, parts.join(",")))
    };
    (1..=3).map(|n| [rules(n, false), rules(n, true)]).collect()
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 8 {
        0..=2 => EVERYTHING.with(|rules| ask(rules, &arbitrary(&mut input))),
        3 => drop(Headers::from_pairs(input.rest().to_vec())),
        4..=6 => spellings_have_one_key(&mut input),
        _ => different_subjects_have_different_keys(&mut input),
    }
}

fn arbitrary(input: &mut Input<'_>) -> FakeRequest {
    let path = (":path".to_owned(), [b"/", input.bytes(80)].concat());
    let mut some = |bound, names: &str, most| {
        let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
        input.list(bound, |input| {
            let name = names[input.below(names.len())].clone();
            (name, input.bytes(most).to_vec())
        })
    };
    FakeRequest {
        headers: [vec![path], some(14, everything::NAMES, 60)]
            .into_iter()
            .flatten()
            .collect(),
        attributes: some(6, everything::ATTRIBUTES, 120).into_iter().collect(),
    }
}

/// How a path is spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Only in ways that all upstreams take for the same.
    Same,
    /// In ways that some upstreams take for another path.
    Disputed,
}

fn spellings_have_one_key(input: &mut Input<'_>) {
    let spelling = if input.flag() {
        Spelling::Same
    } else {
        Spelling::Disputed
    };
    let of_path = input.below(2);
    let (mut plain, mut spelled) = (String::new(), String::new());
    for _ in 0..=input.below(4) {
        plain.push('/');
        spelled.push_str(separator(input, spelling));
        for index in 0..=input.below(6) {
            let mut letter = char::from(input.pick(b"abcdefghijxyzABZ019-_~."));
            // A segment that begins with a dot is not plain.
            if index == 0 && letter == '.' {
                letter = 'v';
            }
            plain.push(letter);
            spell(input, letter, spelling, &mut spelled);
        }
        let parameters: &[&str] = match spelling {
            Spelling::Same => &["", "", ";", ";v=1", ";v=1;w"],
            Spelling::Disputed => &["", ";v=1", "%3Bv", "%3b", ";v=%2e", "%253Bv"],
        };
        spelled.push_str(input.pick(parameters));
    }
    if input.byte() % 4 == 3 {
        spelled.push('/');
    }
    let [one, other] = OF_PATH.with(|rules| {
        [plain.as_str(), spelled.as_str()].map(|path| asked(&rules[of_path], &get(path, &[])))
    });
    assert_eq!(one.len(), 1, "{plain}");
    let refused = other == ["400"] || other == ["414"];
    match spelling {
        Spelling::Same => assert_eq!(other, one, "{plain} {spelled}"),
        Spelling::Disputed => assert!(refused || other == one, "{plain} {spelled}: {other:?}"),
    }
}

const DISPUTED: &str =
    r"/ // /./ \ %2F %5c /x/../ %2fx%2F..%2F /x/%2e%2E/ /%2e/ /x\..\ %252F /x;y/../ /x/..;/";

fn separator(input: &mut Input<'_>, spelling: Spelling) -> &'static str {
    match spelling {
        Spelling::Same => input.pick(&["/", "/", "//", "///"]),
        Spelling::Disputed => input.pick(&DISPUTED.split(' ').collect::<Vec<_>>()),
    }
}

fn spell(input: &mut Input<'_>, letter: char, spelling: Spelling, to: &mut String) {
    let code = u32::from(letter);
    match (input.byte() % 8, spelling) {
        (5, _) => to.push_str(&format!("%{code:02X}")),
        (6, _) => to.push_str(&format!("%{code:02x}")),
        (7, Spelling::Disputed) => to.push_str(&format!("%25{code:02X}")),
        _ => to.push(letter),
    }
}

fn different_subjects_have_different_keys(input: &mut Input<'_>) {
    let plain = input.flag();
    let mut values = || {
        let count = 1 + input.below(3);
        // White space at the edges is nobody's.
        let value = |input: &mut Input<'_>| [b"v", input.bytes(40), b"v"].concat();
        (0..count).map(|_| value(input)).collect::<Vec<_>>()
    };
    let (one, other) = (values(), values());
    let same = key_of(&one, plain) == key_of(&other, plain);
    assert_eq!(same, one == other, "{one:?} {other:?}");
    assert_ne!(key_of(&one, true), key_of(&one, false));
}

fn key_of(values: &[Vec<u8>], plain: bool) -> String {
    let which = (values.len() - 1, usize::from(plain));
    let values = values.iter().map(Vec::as_slice);
    let headers: Vec<_> = ["h0", "h1", "h2"].into_iter().zip(values).collect();
    let request = get("/", &headers);
    let question = OF_HEADERS.with(|rules| question(&rules[which.0][which.1], &request));
    question.checks[0].key.clone()
}
