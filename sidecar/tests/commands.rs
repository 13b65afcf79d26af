//! The commands as a shell sees them: exit statuses, and a closed standard output.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test is meant to panic when it fails"
)]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn sluicegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    command.args(arguments).current_dir(root).env_clear();
    command
}

fn run(arguments: &[&str]) -> Output {
    sluicegate(arguments).output().unwrap()
}

#[test]
fn s20_a_closed_pipe_does_not_make_a_command_panic() {
    let explain: &[&str] = &[
        "explain",
        "--envoy",
        "envoy/envoy.yaml",
        "--request",
        "GET /",
    ];
    let estimate: &[&str] = &[
        "estimate",
        "--policy",
        "envoy/policy.yaml",
        "--keys",
        "1000",
    ];
    let check: &[&str] = &["check-config", "--envoy", "envoy/envoy.yaml"];
    let (completions, man): (&[&str], &[&str]) = (&["completions", "bash"], &["man", "decide"]);
    for arguments in [
        &["schema"][..],
        &["--help"],
        &["--version"],
        explain,
        estimate,
        check,
        completions,
        man,
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = sluicegate(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success() && printed.is_empty(),
            "{arguments:?}: {status} {printed}"
        );
    }
    // A full disk is an error.
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = sluicegate(&["schema"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
}

#[test]
fn s20_invalid_arguments_exit_with_64_like_all_usage_errors() {
    let unknown: &[&str] = &["serve", "--polici", "x"];
    let missing: &[&str] = &["serve"];
    let mode: &[&str] = &["serve", "--policy", "x", "--socket-mode", "999"];
    let none: &[&str] = &["serve", "--policy", "/nonexistent"];
    let (shell, page): (&[&str], &[&str]) = (&["completions", "tcsh"], &["man", "fly"]);
    for arguments in [unknown, missing, mode, none, shell, page, &["fly"], &[]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn s20_a_policy_can_be_checked_without_rules() {
    let output = run(&["check-config", "--policy", "envoy/policy.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("the policy is valid"), "{printed}");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("policy.yaml");
    std::fs::write(
        &broken,
        "limits: { a: { algorithm: sliding_log, windows: [] } }",
    )
    .unwrap();
    let output = run(&["check-config", "--policy", broken.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("windows"), "{printed}");
    assert_eq!(
        run(&["check-config"]).status.code(),
        Some(64),
        "neither was given"
    );
}

#[test]
fn the_store_in_the_environment_is_checked_without_whitespace_around_it() {
    let check = |store: &str| {
        let mut command = sluicegate(&["check-config", "--policy", "envoy/policy.yaml"]);
        command.env("SLUICEGATE_STORE", store).output().unwrap()
    };
    for store in ["", "memory", "redis://127.0.0.1:6379\n"] {
        assert_eq!(check(store).status.code(), Some(0), "{store:?}");
    }
    let wrong = check("redis:/127.0.0.1");
    assert_eq!(wrong.status.code(), Some(64));
    let printed = String::from_utf8_lossy(&wrong.stderr);
    assert!(printed.contains("SLUICEGATE_STORE"), "{printed}");
}

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names
        .map(str::to_owned)
        .filter(|name| name != "help")
        .collect()
}

/// The long arguments that a command's `--help` lists.
fn arguments(command: &str) -> Vec<String> {
    let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
    let lines = help.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-'));
    let words = lines.filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")));
    words.map(str::to_owned).collect()
}

#[test]
fn every_command_and_argument_has_its_place_in_a_manual_page() {
    let of_all = String::from_utf8(run(&["man"]).stdout).unwrap();
    for command in commands() {
        assert!(
            of_all.contains(&format!("sluicegate\\-{}", command.replace('-', "\\-"))),
            "{command}"
        );
        let page = run(&["man", &command]);
        let page = String::from_utf8(page.stdout).unwrap();
        assert!(page.contains(".SH EXAMPLE"), "{command}: {page}");
        for argument in arguments(&command) {
            let spelt = argument.replace('-', "\\-");
            assert!(page.contains(&spelt), "{command} {argument}: {page}");
        }
    }
    assert!(of_all.contains(".SH \"EXIT STATUS\""), "{of_all}");
}

/// What bash offers for a line whose last word is incomplete.
fn completed(line: &str) -> Vec<String> {
    let script = String::from_utf8(run(&["completions", "bash"]).stdout).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let [.., before, last] = words[..] else {
        panic!("{line}")
    };
    let ask = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD={}; _sluicegate sluicegate '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_arguments_and_values() {
    assert_eq!(completed("sluicegate de"), ["decide"]);
    assert_eq!(completed("sluicegate decide --lim"), ["--limit"]);
    assert_eq!(completed("sluicegate peek --output "), ["text", "json"]);
    for command in commands() {
        for argument in arguments(&command) {
            let offered = completed(&format!("sluicegate {command} {argument}"));
            assert!(
                offered.contains(&argument),
                "{command} {argument}: {offered:?}"
            );
        }
    }
    for shell in ["zsh", "fish"] {
        let script = String::from_utf8(run(&["completions", shell]).stdout).unwrap();
        assert!(
            script.contains("give-back") && script.contains("receipt"),
            "{shell}"
        );
    }
}

/// Files that are small and become large, or exhaust a stack, when they are read: refused with an error, never by a crash.
#[test]
fn a_policy_that_expands_without_end_is_refused() {
    let laughs = |name: &str| {
        let first = format!("{name}0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        let line = |n: usize| {
            let aliases = vec![format!("*a{}", n - 1); 10].join(",");
            format!("{name}{n}: &a{n} [{aliases}]\n")
        };
        first + &(1..12).map(line).collect::<String>()
    };
    let nested = (0..5_000).map(|level| " ".repeat(level) + "a:\n");
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("laughs", laughs("a")),
        ("laughs-in-limits", "limits:\n".to_owned() + &laughs("  a")),
        ("nested", nested.collect()),
        ("nested-lists", "limits: ".to_owned() + &"- ".repeat(50_000)),
        (
            "nested-brackets",
            "limits: ".to_owned() + &"[".repeat(200_000),
        ),
    ] {
        let file = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        for kind in ["--policy", "--envoy"] {
            let output = run(&["check-config", kind, file.to_str().unwrap()]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{kind} {name}: {said}");
            assert!(said.contains(name) && said.len() < 1_000, "{said}");
        }
    }
}
