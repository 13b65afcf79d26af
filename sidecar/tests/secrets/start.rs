//! A broken policy, a wrong environment variable or a wrong argument: the sidecar and the commands refuse to start, and
//! print no secret.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use crate::support::rows;

use super::{BROKEN, Folder, GOOD, SECRET, STORES, assert_none, broken_files, finish, sluicegate};

fn fails_without_the_secret_at_the_start(store: &str) {
    let folder = Folder::new();
    let filter = folder.path("filter.yaml");
    fs::write(&filter, "sidecar: { cluster: s }\nrules: []\n").unwrap();
    let filter = filter.display().to_string();
    let mut leaks = Vec::new();
    for (number, (case, file, named)) in broken_files(store).into_iter().enumerate() {
        folder.write(&file);
        // One other command per file, in turn: all commands read the policy in the same way.
        let (words, last): (&[&str], _) = match number % 5 {
            0 => (&["check-store"], "--policy"),
            1 => (&["check-config", "--envoy", &filter], "--policy"),
            2 => (
                &["explain", "--request", "GET /", "--envoy", &filter],
                "--policy",
            ),
            // The policy given as the Envoy file.
            3 => (&["check-config"], "--envoy"),
            _ => (&["explain", "--request", "GET /"], "--envoy"),
        };
        let mut other = sluicegate(words);
        other.arg(last).arg(folder.policy());
        let commands = [folder.serve(), other];
        for (index, command) in commands.into_iter().enumerate() {
            let name = command.get_args().next().unwrap().display().to_string();
            let (status, printed) = finish(command);
            if printed.contains(SECRET) {
                leaks.push(format!("{case}: {name}: {printed}"));
            } else if index == 0 {
                if status != 64 {
                    leaks.push(format!("{case}: {status}: {printed}"));
                }
                for name in named.iter().filter(|name| !printed.contains(**name)) {
                    leaks.push(format!("{case}: no {name} in {printed}"));
                }
            }
        }
    }
    assert_none(&leaks);
}

#[test]
fn no_secret_at_the_start() {
    for store in [STORES[0], STORES[2], STORES[3]] {
        fails_without_the_secret_at_the_start(store);
    }
}

#[test]
fn no_secret_in_errors_about_the_environment_or_arguments() {
    let folder = Folder::new();
    folder.write(GOOD.replace("STORE", "memory").as_bytes());
    let mut commands = Vec::new();
    let of_store = BROKEN
        .iter()
        .filter(|(.., named)| named.contains(&"`store`"));
    for url in of_store.filter_map(|(_, to, _)| to.strip_prefix("store: ")) {
        if url.starts_with("redis") {
            let mut by_variable = folder.serve();
            by_variable.env("SLUICEGATE_STORE", url);
            let mut by_argument = folder.serve();
            by_argument.args(["--store", url]);
            commands.extend([by_variable, by_argument]);
        }
    }
    assert!(commands.len() > 10);
    for store in STORES {
        let mut twice = folder.serve();
        twice.args(["--store", store, "--store", store]);
        let mut not_unicode = folder.serve();
        let bytes = [store.as_bytes(), b"\xe9"].concat();
        not_unicode.env("SLUICEGATE_STORE", OsString::from_vec(bytes));
        commands.extend([twice, not_unicode]);
        let table = "
            serve --policy nowhere --strore STORE
            serve --policy nowhere --strore=STORE
            serve --policy nowhere STORE
            serve --policy nowhere --admin-token t STORE
            serve --policy nowhere --listen STORE
            serve --policy nowhere --admin-listen=STORE
            serve --policy STORE
            check-config --envoy STORE
            decide --limit l --key k --cost STORE
            STORE
        ";
        for [words] in rows(table) {
            let words = words.replace("STORE", store);
            let words: Vec<_> = words.split_whitespace().collect();
            commands.push(sluicegate(&words));
        }
    }
    let mut leaks = Vec::new();
    for command in commands {
        let shown = format!("{command:?}");
        let (status, printed) = finish(command);
        if printed.contains(SECRET) || !matches!(status, 2 | 64) || printed.len() < 20 {
            leaks.push(format!("{shown}: {status}: {printed}"));
        }
    }
    assert_none(&leaks);
}
