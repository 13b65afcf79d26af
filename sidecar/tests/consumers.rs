//! `sluicegate consumers`: the file that it writes, and that keys in it are those of the filter.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::support::{finish, has, has_all, lacks, printed, sluicegate};

const PEPPER: &str = "pepper";

/// Runs the command in a folder, with this on its standard input; its exit status and all that it printed.
fn consumers(folder: &Path, arguments: &str, stdin: &str) -> (i32, String) {
    let input = folder.join("stdin");
    std::fs::write(&input, stdin).unwrap();
    std::fs::write(folder.join("pepper"), format!("{PEPPER}\n")).unwrap();
    std::fs::write(folder.join("other"), "other").unwrap();
    std::fs::write(folder.join("empty"), "\n").unwrap();
    let words: Vec<_> = arguments.split_whitespace().collect();
    let mut command = sluicegate(&[&["consumers"][..], &words].concat());
    command
        .current_dir(folder)
        .stdin(File::open(input).unwrap());
    finish(command)
}

#[test]
fn keys_are_added_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str, stdin: &str| {
        let (status, text) = consumers(folder.path(), arguments, stdin);
        assert_eq!(status, 0, "{text}");
        text
    };
    lacks(
        &run("add acme --pepper-file pepper", "secret-1\n"),
        "secret",
    );
    let made = run("add acme --pepper-file pepper", "");
    let key = made.lines().next().unwrap();
    assert_eq!(key.len(), 43, "{made}");
    run(
        "add beta --pepper-file pepper --file consumers.yaml",
        " secret-2 ",
    );
    let file = std::fs::read_to_string(folder.path().join("consumers.yaml")).unwrap();
    lacks(&file, "secret");
    lacks(&file, key);
    let list = run("list", "");
    has_all(&list, "acme, beta");
    // The first digits of each hash.
    let of_acme = list.lines().next().unwrap();
    let hashes: Vec<_> = of_acme.split_whitespace().skip(1).collect();
    assert_eq!(hashes.len(), 2, "{list}");
    let told = run(&format!("remove acme --hash {}", hashes[0]), "");
    has_all(&told, "removed 1, refuses its policy, stay valid");
    let list = run("list", "");
    lacks(&list, hashes[0]);
    has_all(&list, &format!("{}, beta", hashes[1]));
    run("remove beta", "");
    lacks(&run("list", ""), "beta");
    run("remove acme", "");
    assert_eq!(run("list", ""), "");
}

/// Everybody on the host can open a folder that they can read, and lock it.
#[test]
fn a_lock_of_another_user_on_the_folder_or_the_file_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let add = || consumers(folder.path(), "add acme --pepper-file pepper", "");
    assert_eq!(add().0, 0);
    let locked = [".", "consumers.yaml"].map(|name| File::open(folder.path().join(name)).unwrap());
    locked.iter().for_each(|file| file.lock().unwrap());
    assert_eq!(add().0, 0);
    let own = File::open(folder.path().join("consumers.lock")).unwrap();
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    own.lock().unwrap();
    let (status, text) = add();
    assert_eq!(status, 1, "{text}");
    has(&text, "another `sluicegate consumers`");
}

#[test]
fn a_mistake_changes_nothing_and_is_told_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str, stdin: &str| consumers(folder.path(), arguments, stdin);
    assert_eq!(run("add acme --pepper-file pepper", "secret-1").0, 0);
    let path = folder.path().join("consumers.yaml");
    let before = std::fs::read_to_string(&path).unwrap();
    for (arguments, stdin, expected) in [
        (
            "add beta --pepper-file pepper",
            "secret-1",
            "`acme` has this key already",
        ),
        (
            "add acme --pepper-file pepper",
            "secret-1",
            "`acme` has this key already",
        ),
        ("add beta --pepper-file other", "secret-2", "another pepper"),
        ("add beta --pepper-file empty", "secret-2", "is empty"),
        ("add beta --pepper-file missing", "secret-2", "missing"),
        (
            "add b/eta --pepper-file pepper",
            "secret-2",
            "a name consists of",
        ),
        (
            "add beta --pepper-file pepper",
            "secret-2\nsecret-3",
            "one line of printable ASCII",
        ),
        ("remove beta", "", "no such key"),
        ("remove acme --hash x", "", "at least the 8 digits"),
        ("remove acme --hash 12", "", "at least the 8 digits"),
        ("remove acme --hash 00000000", "", "no such key"),
        ("list --file pepper", "", "line 1"),
    ] {
        let (status, text) = run(arguments, stdin);
        assert_eq!(status, 64, "{arguments}: {text}");
        has(&text, expected);
        lacks(&text, "secret");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            before,
            "{arguments}"
        );
    }
}

/// Hashed by the command as by the filter, also what the filter reads as credentials.
#[test]
fn explain_recognizes_a_consumer() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (key, header) in [
        ("secret", "x-api-key:   secret"),
        ("Bearer   secret", "authorization: BEARER secret"),
    ] {
        let _ = std::fs::remove_file(path("consumers.yaml"));
        assert_eq!(
            consumers(folder.path(), "add acme --pepper-file pepper", key).0,
            0
        );
        let file = std::fs::read_to_string(path("consumers.yaml")).unwrap();
        let quoted: Vec<_> = file.split('"').collect();
        let [_, digest, _, _, _, hash, ..] = quoted[..] else {
            panic!("{file}");
        };
        let name = header.split(':').next().unwrap();
        let policy = format!(
            "
limits: {{ partner.acme: {{ algorithm: sliding_log, windows: [{{ quota: 50, per: 1m }}] }} }}
consumers: {{ partner: {{ pepper: \"{digest}\", keys: {{ \"{hash}\": acme }}, limits: {{ default: partner.acme }} }} }}
rules:
  s:
    rules:
      - name: partner
        checks: [{{ limit: partner, key: [{{ header: {name} }}], when_missing: {{ address: {{}} }}, consumers: true }}]
        when_unavailable: allow
"
        );
        std::fs::write(path("policy.yaml"), policy).unwrap();
        let filter = format!(
            r#"{{ "version": 2, "pepper": "{PEPPER}", "sidecar": {{ "cluster": "c" }}, "rule_sets": {{ "default": "s" }} }}"#
        );
        std::fs::write(path("filter.json"), filter).unwrap();
        let (policy, filter) = (path("policy.yaml"), path("filter.json"));
        let explain = |header: &str| {
            let arguments = [
                "explain",
                "--policy",
                &policy,
                "--envoy",
                &filter,
                "--request",
                "GET /",
                "-H",
                header,
            ];
            printed(&sluicegate(&arguments).output().unwrap()).1
        };
        has_all(
            &explain(header),
            "of consumers: limit `partner.acme`; key `@consumer=acme`; 50 per 1m"
                .replace("; ", ", ")
                .as_str(),
        );
        has(
            &explain(&format!("{name}: unknown")),
            &format!("key `@missing/{name}=192.0.2.1`, subject"),
        );
        // N3: without the pepper, a stranger's limit and key.
        let with = |arguments: &[&str]| {
            let mut explain = sluicegate(&["explain", "--policy", &policy, "--request", "GET /"]);
            explain.args(arguments);
            finish(explain)
        };
        let (right, other) = (path("pepper"), path("other"));
        let (status, text) = with(&["-H", header, "--pepper-file", &right]);
        assert_eq!(status, 0, "{text}");
        has(
            &text,
            "of consumers: limit `partner.acme`, key `@consumer=acme`",
        );
        lacks(&text, "of an empty `pepper`");
        for wrong in [
            &["-H", header][..],
            &["-H", header, "--pepper-file", &other],
        ] {
            let (status, text) = with(wrong);
            assert_eq!(status, 64, "{text}");
            has_all(&text, "another pepper, `--pepper-file FILE`");
            lacks(&text, "partner.default");
        }
        // Nobody's key is looked for.
        let (status, text) = with(&[]);
        assert_eq!(status, 0, "{text}");
        has(&text, &format!("key `@missing/{name}=192.0.2.1`"));
        let check = sluicegate(&["check-config", "--policy", &policy, "--envoy", &filter]);
        let (status, text) = finish(check);
        assert_eq!(status, 0, "{text}");
        // A pepper that Envoy has in its environment, this command has in its own.
        let elsewhere = path("elsewhere.json");
        let text = std::fs::read_to_string(&filter).unwrap();
        let text = text.replace(
            &format!("\"pepper\": \"{PEPPER}\""),
            "\"pepper_env\": \"SALT\"",
        );
        std::fs::write(&elsewhere, text).unwrap();
        let explain = |salt: Option<&str>| {
            let words = [
                "explain",
                "--policy",
                &policy,
                "--envoy",
                &elsewhere,
                "--request",
                "GET /",
            ];
            let mut explain = sluicegate(&words);
            explain.args(["-H", header]);
            explain.envs(salt.map(|salt| ("SALT", salt)));
            finish(explain)
        };
        has(
            &explain(Some(PEPPER)).1,
            "limit `partner.acme`, key `@consumer=acme`",
        );
        let (status, text) = explain(None);
        assert_eq!(status, 64, "{text}");
        has(&text, "the environment has no `SALT`");
    }
}

/// Each reads the file and replaces it.
#[test]
fn what_several_add_at_once_is_there_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let added = std::thread::scope(|scope| {
        let add = |number: usize| {
            let arguments = format!("add c{number} --pepper-file pepper");
            consumers(folder.path(), &arguments, &format!("secret-{number}")).0
        };
        let adding: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || add(number)))
            .collect();
        let done = adding.into_iter().map(|one| one.join().unwrap());
        done.filter(|status| *status == 0).count()
    });
    let (_, list) = consumers(folder.path(), "list", "");
    assert!(added > 0, "{list}");
    assert_eq!(list.lines().count(), added, "{list}");
}
