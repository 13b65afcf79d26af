//! The commands as a shell sees them: exit statuses, and a closed standard output.

use std::io::Read;
use std::process::{Command, Output, Stdio};

use super::support::{finish, has, has_all, read, sluicegate};

fn run(arguments: &[&str]) -> Output {
    sluicegate(arguments).output().unwrap()
}

/// What a command prints that ends well.
fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_closed_pipe_does_not_make_a_command_panic() {
    for arguments in [
        "schema",
        "--help",
        "--version",
        "explain|--policy|envoy/policy.yaml|--envoy|envoy/envoy.yaml|--request|GET /",
        "check-config|--envoy|envoy/envoy.yaml",
        "completions|bash",
        "man|decide",
    ] {
        let arguments: Vec<_> = arguments.split('|').collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = sluicegate(&arguments);
        command.stdout(writer).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut printed = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut printed).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{arguments:?}: {status} {printed}");
        assert_eq!(printed, "", "{arguments:?}");
    }
    // A full disk is an error.
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = sluicegate(&["schema"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
}

#[test]
fn invalid_arguments_exit_with_64_like_all_usage_errors() {
    for arguments in [
        "",
        "fly",
        "serve",
        "serve --polici x",
        "serve --policy x --socket-mode 999",
        "serve --policy /nonexistent",
        "serve --policy README.md",
        "completions tcsh",
        "man fly",
        "man override fly",
        "man decide fly",
        "check-config",
    ] {
        let words: Vec<_> = arguments.split_whitespace().collect();
        let (status, printed) = finish(sluicegate(&words));
        assert!(status == 64 && !printed.is_empty(), "{arguments}: {status}");
    }
    for arguments in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        assert!(!stdout(arguments).is_empty(), "{arguments:?}");
    }
    // Newcomers' finding 23.
    for arguments in [&["decide", "--version"][..], &["override", "set", "-V"]] {
        has(&stdout(arguments), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn the_page_on_render_shows_a_part_of_what_it_prints() {
    let page = read("docs/dev.md");
    let block = page.split("```yaml\n").nth(2).unwrap();
    let (part, _) = block.split_once("```").unwrap();
    let filter = "/usr/local/lib/sluicegate/sluicegate.wasm";
    let parts = stdout(&["render", "--for", "envoy", "--filter", filter]);
    has(
        &parts,
        &format!("---\n# 4. In its `http_filters`:\n{part}---\n"),
    );
    assert_eq!(parts.matches("---\n# ").count(), 5, "{parts}");
}

#[test]
fn a_policy_can_be_checked_without_rules() {
    let valid = stdout(&["check-config", "--policy", "envoy/policy.yaml"]);
    has(&valid, "the policy is valid");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let broken = "limits: { a: { algorithm: sliding_log, windows: [] } }";
    std::fs::write(&file, broken).unwrap();
    let check = sluicegate(&["check-config", "--policy", file.to_str().unwrap()]);
    let (status, printed) = finish(check);
    assert_eq!(status, 64);
    has(&printed, "windows");
}

#[test]
fn the_store_in_the_environment_is_checked_without_whitespace_around_it() {
    let check = |store: &str| {
        let mut command = sluicegate(&["check-config", "--policy", "envoy/policy.yaml"]);
        command.env("SLUICEGATE_STORE", store);
        finish(command)
    };
    for store in ["", "memory", "redis://127.0.0.1:6379\n"] {
        assert_eq!(check(store).0, 0, "{store:?}");
    }
    let (status, printed) = check("redis:/127.0.0.1");
    assert_eq!(status, 64);
    has(&printed, "SLUICEGATE_STORE");
}

/// The commands that `--help` lists, after these words.
fn commands(of: &[&str]) -> Vec<String> {
    let help = stdout(&[of, &["--help"]].concat());
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// The long arguments that a command's `--help` lists.
fn arguments(command: &[&str]) -> Vec<String> {
    let help = stdout(&[command, &["--help"]].concat());
    let lines = help.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-'));
    let words = lines.filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")));
    words.map(str::to_owned).collect()
}

#[test]
fn every_command_and_argument_has_its_place_in_a_manual_page() {
    let of_all = stdout(&["man"]);
    for command in commands(&[]) {
        is_in_its_page(&of_all, &[&command]);
    }
    has(&of_all, ".SH \"EXIT STATUS\"");
    // Newcomers' finding 22: the page of `override` refers to these.
    let of_override = stdout(&["man", "override"]);
    for command in commands(&["override"]) {
        is_in_its_page(&of_override, &["override", &command]);
    }
}

/// Another page refers to the page of this command, which lists its arguments.
fn is_in_its_page(refers: &str, command: &[&str]) {
    let name = command.join("-").replace('-', "\\-");
    has(refers, &format!("sluicegate\\-{name}"));
    let page = stdout(&[&["man"], command].concat());
    has(&page, &format!("sluicegate\\-{name}"));
    has(&page, ".SH EXAMPLE");
    for argument in arguments(command) {
        has(&page, &argument.replace('-', "\\-"));
    }
}

/// What bash offers for a line whose last word is incomplete.
fn completed(line: &str) -> Vec<String> {
    let script = stdout(&["completions", "bash"]);
    let words: Vec<_> = line.split(' ').collect();
    let [.., before, last] = words[..] else {
        panic!("{line}")
    };
    let ask = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD={}; _sluicegate sluicegate '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_arguments_and_values() {
    assert_eq!(completed("sluicegate dec"), ["decide"]);
    assert_eq!(completed("sluicegate decide --lim"), ["--limit"]);
    for output in ["--output", "-o"] {
        let offered = completed(&format!("sluicegate peek {output} "));
        assert_eq!(offered, ["text", "json"]);
    }
    for command in commands(&[]) {
        for argument in arguments(&[&command]) {
            let offered = completed(&format!("sluicegate {command} {argument}"));
            assert!(offered.contains(&argument), "{command}: {offered:?}");
        }
    }
    for shell in ["zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        has_all(&script, "settle, receipt");
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
        ("brackets", "limits: ".to_owned() + &"[".repeat(200_000)),
    ] {
        let file = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        for kind in ["--policy", "--envoy"] {
            let check = sluicegate(&["check-config", kind, file.to_str().unwrap()]);
            let (status, printed) = finish(check);
            assert_eq!(status, 64, "{kind} {name}: {printed}");
            has(&printed, name);
            assert!(printed.len() < 1_000, "{printed}");
        }
    }
}
