//! `sluicegate test`: tables of requests, as a team keeps them beside its policy.

use std::path::Path;

use super::support::{finish, has, has_all, read, rows, sluicegate};

/// The blocks of YAML of the page: a policy, and a file that tests it.
fn page() -> [String; 2] {
    let blocks = blocks(&read("docs/test.md"), "yaml");
    blocks.try_into().expect("two blocks")
}

/// The blocks of this kind in a page or a section.
fn blocks(text: &str, kind: &str) -> Vec<String> {
    let start = format!("```{kind}\n");
    let blocks = text.split(&start).skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap().to_owned());
    blocks.collect()
}

/// Runs these tests of this policy: the exit status, and all that was printed.
fn run_in(folder: &Path, policy: &str, tests: &str) -> (i32, String) {
    std::fs::write(folder.join("policy.yaml"), policy).unwrap();
    std::fs::write(folder.join("policy.test.yaml"), tests).unwrap();
    let mut command = sluicegate(&["test", "policy.test.yaml"]);
    command.current_dir(folder);
    finish(command)
}

fn run(policy: &str, tests: &str) -> (i32, String) {
    run_in(tempfile::tempdir().unwrap().path(), policy, tests)
}

#[test]
fn the_tests_of_the_shipped_policy_and_of_the_page_are_as_expected() {
    let shipped = finish(sluicegate(&["test", "envoy/policy.test.yaml"]));
    assert_eq!(shipped, (0, "28 rows are as expected\n".to_owned()));
    let [policy, tests] = page();
    let (status, printed) = run(&policy, &tests);
    assert_eq!((status, &*printed), (0, "9 rows are as expected\n"));
}

#[test]
fn every_recipe_on_requests_does_what_its_table_says() {
    let page = read("docs/recipes-requests.md");
    let mut ran = 0;
    for section in page.split("\n## ").skip(1) {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("pepper.txt", "of the page");
        write("acme.key", "key-of-acme");
        write("beta.key", "key-of-beta");
        for script in blocks(section, "sh") {
            let script = format!("sluicegate() {{ \"$SLUICEGATE\" \"$@\"; }}\n{script}");
            let mut shell = std::process::Command::new("sh");
            shell.args(["-ec", &script]).current_dir(folder.path());
            shell.env("SLUICEGATE", env!("CARGO_BIN_EXE_sluicegate"));
            let (status, printed) = finish(shell);
            assert_eq!(status, 0, "{printed}");
        }
        let yaml = blocks(section, "yaml");
        let starts = |with: &str| yaml.iter().find(|block| block.starts_with(with));
        let policy = starts("limits:").expect(section);
        let tests = starts("policy: policy.yaml\n").expect(section);
        let (status, printed) = run_in(folder.path(), policy, tests);
        assert_eq!(status, 0, "{section}\n{printed}");
        ran += 1;
    }
    assert_eq!(ran, 7);
}

#[test]
fn check_config_and_explain_know_a_tier_that_allows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, page()[0].as_str()).unwrap();
    let path = path.to_str().unwrap();
    let (status, printed) = finish(sluicegate(&["check-config", "--policy", path]));
    assert_eq!(status, 0, "{printed}");
    has(&printed, "0 errors, 0 warnings");
    let claims = r#"jwt={"plan":"banned","tenant":{"id":7}}"#;
    let explain = [
        "explain",
        "--policy",
        path,
        "--request",
        "GET /v1/x",
        "--claims",
        claims,
    ];
    has_all(
        &finish(sluicegate(&explain)).1,
        "limit `tenant.banned`, \n    nothing\n",
    );
}

#[test]
fn a_row_that_is_not_as_expected_is_told_with_its_line_and_what_came() {
    let [policy, tests] = page();
    let (status, printed) = run(
        &policy,
        &tests.replace("retry_after: 40s", "retry_after: 30s"),
    );
    assert_eq!(status, 1, "{printed}");
    let shown = read("docs/test.md");
    let shown = shown
        .split("```\n")
        .find(|block| block.starts_with("policy.test.yaml:"));
    assert!(printed.starts_with(shown.unwrap()), "{printed}");
    has(&printed, "1 of 9 rows are not as expected");
    let table = r"
        times: 10, expect: admitted, by: login | times: 12, expect: admitted, by: login | :6:, 11 of 12, got denied by `login`
        { at: 1m, expect: admitted } | { at: 59999ms, expect: admitted } | :9:, at 59s 999ms, got denied by `login`
        times: 101, expect: admitted, by: tenant.gold | times: 101, expect: admitted, by: tenant | :15:, expected admitted by `tenant`, got admitted by `tenant.gold`
        by: tenant.banned, retry_after: none | retry_after: 1h | :16:, retry_after 1h, retry_after none
        expect: unlimited | expect: admitted | :17:, expected admitted, got unlimited
        address: 198.51.100.7 | headers: { x: [1, two] } | :8:, got denied by `login`
    ";
    for [from, to, told] in rows(table) {
        assert!(tests.contains(&from), "{from}");
        let (status, printed) = run(&policy, &tests.replace(&from, &to));
        assert_eq!(status, 1, "{to}: {printed}");
        has_all(&printed, &told);
    }
    let without = policy.replace(
        "    key: address\n",
        "    key: { header: x-api-key }\n    when_missing: deny\n",
    );
    let (status, printed) = run(&without, &tests);
    assert_eq!(status, 1, "{printed}");
    has_all(&printed, ":6:, got refused, 4 of 9 rows");
    // What the policy says of the same requests on another day of the calendar.
    let daily = policy.replace("rate: 10/1m", "rate: 10/day");
    let (_, printed) = run(&daily, &tests);
    has(&printed, "got denied by `login`, retry_after 23h 59m 40s");
    let at_night = tests.replace(
        "    each: { request: POST",
        "    start: 2026-06-01T23:59:30Z\n    each: { request: POST",
    );
    let (_, printed) = run(&daily, &at_night);
    has(&printed, "got denied by `login`, retry_after 10s");
}

#[test]
fn a_mistake_in_a_file_is_told_with_line_field_and_remedy() {
    let [policy, tests] = page();
    let table = r"
        at: 20s, expect: denied | at: 20s, expects: denied | :7:, `tests[0].requests[1].expects`, unknown field, did you mean `expect`?
        expect: denied, by: login | expect: limited, by: login | :7:, `limited`, `unlimited`
        expect: denied, by: login | by: login | :7:, `tests[0].requests[1].expect`, give `admitted`
        at: 20s, expect: denied | at: 20, expect: denied | :7:, 20 is no duration, `2s`
        at: 20s, expect: denied | at: 20sec, expect: denied | :7:, `20sec` is not a duration
        at: 1m, expect | at: 10s, expect | :9:, before the row above
        times: 10 | times: 0 | :6:, `tests[0].requests[0].times`, nonzero
        request: POST /login | request: /login | :6:, `/login` is not of the form `GET /path`
        retry_after: 40s | retry_after: soon | :7:, `soon` is not a duration
        address: 198.51.100.7 | address: here | :8:, address
        address: 198.51.100.7 | headers: { x: { y: z } } | :8:, `tests[0].requests[2].headers.x`, give a text
        - name: plans | - title: plans | :10:, `tests[1].title`, unknown field, `name`
        - name: plans | - name: plans\n    start: noon | :11:, `tests[1].start`, `2026-06-01T00:00:00Z`
        tests: | set: internal\ntests: | no rule set `internal`
        policy: policy.yaml | policy: none.yaml | cannot read policy none.yaml
        policy: policy.yaml # relative to this file | | :2:, missing field `policy`
        requests: | requests: []\n    others: | :6:, unknown field
        tests: | tests: []\nothers: | unknown field
    ";
    for [from, to, told] in rows(table) {
        assert!(tests.contains(&from), "{from}");
        let (status, printed) = run(&policy, &tests.replacen(&from, &to, 1));
        assert_eq!(status, 64, "{to}: {printed}");
        has_all(&printed, &told);
    }
    let none = run(
        &policy,
        "policy: policy.yaml\ntests: [{ name: n, requests: [] }]\n",
    );
    assert_eq!(none.0, 64, "{}", none.1);
    has_all(&none.1, ":2:, `tests[0].requests`, at least one");
    let (status, printed) = run("limits: {}", &tests);
    assert_eq!(status, 64, "{printed}");
    has(&printed, "policy.yaml");
}

/// N11: a plan that many consumers have, from the command that puts them there to the limit that counts them.
#[test]
fn consumers_of_a_tier_are_counted_by_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let consumers = |words: &str, key: &str| {
        std::fs::write(folder.path().join("pepper"), "pepper").unwrap();
        std::fs::write(folder.path().join("key"), key).unwrap();
        let words: Vec<_> = ["consumers"].into_iter().chain(words.split(' ')).collect();
        let mut command = sluicegate(&words);
        let key = std::fs::File::open(folder.path().join("key")).unwrap();
        command.current_dir(folder.path()).stdin(key);
        let (status, printed) = finish(command);
        assert_eq!(status, 0, "{printed}");
        printed
    };
    consumers("add acme --tier gold --pepper-file pepper", "of-acme");
    consumers("add beta --tier gold --pepper-file pepper", "of-beta");
    consumers("add gold --pepper-file pepper", "of-gold");
    consumers("add own --pepper-file pepper", "of-own");
    has_all(&consumers("list", ""), "acme, beta, tier gold");
    let policy = "
limits:
  partner:
    key: { header: x-api-key, consumers: consumers.yaml }
    tiers: { by: consumer, gold: 50/1m, own: 20/1m, default: 5/1m }
";
    let row = |key: &str, times: usize, tier: &str| {
        format!(
            "{{ headers: {{ x-api-key: {key} }}, times: {times}, expect: admitted, by: partner.{tier} }}"
        )
    };
    let tests = |rows: &[String]| {
        format!(
            "policy: policy.yaml\npepper_file: pepper\ntests: [{{ name: n, each: {{ request: GET / }}, requests: [{}] }}]",
            rows.join(", ")
        )
    };
    let both = [row("of-acme", 50, "gold"), row("of-beta", 50, "gold")];
    let others = [
        row("of-own", 20, "own"),
        row("of-gold", 5, "default"),
        row("nobody", 5, "default"),
    ];
    let all = tests(&[both.as_slice(), &others].concat());
    let (status, printed) = run_in(folder.path(), policy, &all);
    assert_eq!(status, 0, "{printed}");
    // Another pepper would count everybody by the address.
    let (status, printed) = run_in(
        folder.path(),
        policy,
        &all.replace("pepper_file: pepper\n", ""),
    );
    assert_eq!(status, 64, "{printed}");
    has(&printed, "name the filters' in `pepper_file`");
    // A second key, and another plan: the consumer leaves the first.
    consumers(
        "add acme --tier silver --pepper-file pepper",
        "also-of-acme",
    );
    let moved = [row("of-acme", 5, "default"), both[1].clone()];
    let (status, printed) = run_in(folder.path(), policy, &tests(&moved));
    assert_eq!(status, 0, "{printed}");
    let expand = sluicegate(&["explain", "--expand", "--policy", "policy.yaml"]);
    let mut expand = expand;
    expand.current_dir(folder.path());
    has(&finish(expand).1, "`silver: default`");
    // Without consumers a tier does not become one.
    consumers("remove beta", "");
    let (status, printed) = run_in(
        folder.path(),
        policy,
        &tests(&[row("of-gold", 5, "default")]),
    );
    assert_eq!(status, 0, "{printed}");
    // By hand, a consumer may get into two.
    let file = folder.path().join("consumers.yaml");
    let twice = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        twice.replace("\"gold\": []", "\"gold\": [acme]\n  \"own\": [acme]"),
    )
    .unwrap();
    let (status, printed) = run_in(folder.path(), policy, &all);
    assert_eq!(status, 64, "{printed}");
    has_all(
        &printed,
        "line 5, consumer `acme`, remove it from one of them",
    );
}
