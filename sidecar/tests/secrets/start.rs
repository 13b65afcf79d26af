//! A broken policy, a wrong environment variable or a wrong argument: the sidecar and the commands refuse to start, and
//! print no secret.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

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
            0 => (&["estimate", "--keys", "1"], "--policy"),
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
            let words: Vec<_> = command
                .get_args()
                .map(|word| word.display().to_string())
                .collect();
            let (status, printed) = finish(command);
            if printed.contains(SECRET) {
                leaks.push(format!("{case}: {}: {printed}", words[0]));
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
    for (_, to, _) in BROKEN
        .iter()
        .filter(|(_, to, named)| named.contains(&"`store`") && to.starts_with("store: redis"))
    {
        let mut command = folder.serve();
        command.env("SLUICEGATE_STORE", to.trim_start_matches("store: "));
        commands.push(command);
        let mut command = folder.serve();
        command.args(["--store", to.trim_start_matches("store: ")]);
        commands.push(command);
    }
    assert!(commands.len() > 10);
    for store in STORES {
        let mut twice = folder.serve();
        twice.args(["--store", store, "--store", store]);
        let mut not_unicode = folder.serve();
        let bytes = [store.as_bytes(), b"\xe9"].concat();
        not_unicode.env("SLUICEGATE_STORE", OsString::from_vec(bytes));
        commands.extend([twice, not_unicode]);
        let equals = format!("--strore={store}");
        let listen = format!("--admin-listen={store}");
        for words in [
            &["--strore", store][..],
            &[&equals],
            &[store],
            &["--admin-token", "t", store],
            &["--listen", store],
            &[&listen],
        ] {
            let mut command = sluicegate(&["serve", "--policy", "nowhere"]);
            command.args(words);
            commands.push(command);
        }
        commands.push(sluicegate(&["serve", "--policy", store]));
        commands.push(sluicegate(&["check-config", "--envoy", store]));
        commands.push(sluicegate(&[
            "estimate", "--policy", "nowhere", "--keys", store,
        ]));
        commands.push(sluicegate(&[store]));
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
