//! Every exit status, whoever decides.

use std::process::Stdio;

use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::free_port;
use sluicegate_tests::sidecar::Sidecar;

use super::shell::{POLICY, Shell};

/// What jobs see of a policy, with these arguments after each command.
async fn the_status_tells_the_verdict(shell: &Shell, more: &str) {
    let ends = async |code: i32, arguments: &str| {
        let command = format!("decide {arguments} {more}");
        let ran = shell.ends(code, &command).await;
        assert!(!ran.err.contains("panicked"), "{ran:?}");
        ran
    };
    let ran = ends(0, "--limit hourly --key k --cost 8").await;
    let told = "admitted: limit `hourly` has 2 of 10 left in a window of 1h\n";
    assert_eq!((ran.out.as_str(), ran.err.as_str()), (told, ""));
    let ran = ends(75, "--limit hourly --key k --cost 3").await;
    let told = "denied: limit `hourly` has 2 of 10 left";
    assert!(ran.out.starts_with(told) && ran.err.is_empty(), "{ran:?}");
    ends(0, "--limit hourly --key somebody-else").await;

    let ran = ends(75, "--limit hourly --key k --cost 3 --output json").await;
    let verdict = ran.json();
    assert_eq!(verdict["outcome"], "denied");
    let after = verdict["retry_after_ms"].as_u64().unwrap();
    assert!(after > 3_000_000, "{verdict}");
    let ran = ends(0, "--limit hourly --key k --cost 2 --quiet").await;
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));

    // Together or not at all.
    ends(75, "--check other=k:2 --check hourly=k:1").await;
    assert_eq!(shell.left("other", more).await, 5);
    ends(0, "--limit other --key k --cost 2 --check other=a=b:c:3").await;
    assert_eq!(shell.left("other", more).await, 3);

    for mistake in MISTAKES.trim().lines() {
        let (arguments, named) = mistake.split_once(" => ").unwrap();
        let ran = ends(64, arguments).await;
        assert!(ran.err.contains(named), "{mistake}: {ran:?}");
    }
}

/// Arguments of `decide`, and what is said of them.
const MISTAKES: &str = "
--limit hourli --key k => `--limit`: the policy has no limit `hourli`; did you mean `hourly`?
--limit hourly --key k --cost 11 => `--cost`: 11 is more than limit `hourly` ever holds (10)
--check hourly=k:11 => `--check`: 11 is more
--limit hourly --key k --cost 0 => --cost
--limit hourly => --key
--key k => --limit
--check hourly=k => --check
--limit hourly --key k --wait soon => --wait
";

#[tokio::test]
async fn a_sidecar_decides() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    the_status_tells_the_verdict(&shell, "").await;
}

#[tokio::test]
async fn a_sidecar_behind_a_unix_socket_decides() {
    let shell = Shell::with_policy();
    let socket = shell.folder.path().join("decisions.sock");
    let planned = Sidecar::with(POLICY).socket(&socket);
    let _sidecar = planned.start(shell.folder.path()).await;
    let sidecar = format!("--sidecar unix:{}", socket.display());
    the_status_tells_the_verdict(&shell, &sidecar).await;
}

#[tokio::test]
async fn a_policy_is_applied_without_a_sidecar() {
    let (shell, _redis) = Shell::with_redis().await;
    the_status_tells_the_verdict(&shell, "--policy policy.yaml").await;
}

#[tokio::test]
async fn an_override_in_the_store_holds_without_a_sidecar() {
    let (mut shell, redis) = Shell::with_redis().await;
    let policy = format!("store: {}\n{POLICY}", redis.url());
    let sidecar = Sidecar::start(&policy, shell.folder.path()).await;
    shell.ask(&sidecar);
    let set = "override set --limit hourly --key k --blocked --for 2h --reason test";
    shell.must(set).await;
    let direct = "decide --limit hourly --policy policy.yaml --key";
    shell.ends(75, &format!("{direct} k")).await;
    shell.must(&format!("{direct} other")).await;
    shell.must("override remove --limit hourly --key k").await;
    shell.must(&format!("{direct} k")).await;
}

#[tokio::test]
async fn a_policy_is_applied_to_a_cluster_without_a_sidecar() {
    let mut shell = Shell::with_policy();
    let cluster = Cluster::start().await;
    shell.set("SLUICEGATE_STORE", cluster.url());
    the_status_tells_the_verdict(&shell, "--policy policy.yaml").await;
}

#[tokio::test]
async fn a_part_that_is_away_is_69_and_a_mistake_in_naming_it_64() {
    let mut shell = Shell::with_policy();
    let nobody = format!("http://127.0.0.1:{}", free_port());
    shell.set("SLUICEGATE_SIDECAR", &nobody);
    shell.set("SLUICEGATE_ADMIN", &nobody);
    for command in [
        "decide --limit hourly --key k",
        "peek --limit hourly --key k",
        "reset --limit hourly --key k",
        "settle --limit hourly --key k --receipt 6f1c0b5e8d2a4c7f9e3b1a5d7c0f2e4b --units 0",
        "top --once",
    ] {
        let ran = shell.ends(69, command).await;
        let told = ran.err.contains(&nobody) && ran.err.contains("refused");
        assert!(told && ran.out.is_empty(), "{ran:?}");
    }
    let decide = "decide --limit hourly --key k";
    let ran = shell.ends(69, &format!("{decide} --output json")).await;
    assert_eq!(ran.json()["outcome"], "unavailable");

    let direct = "decide --key k --policy policy.yaml";
    let ran = shell.ends(64, &format!("{direct} --limit hourly")).await;
    for part in ["policy.yaml", "`memory`", "--store", "--sidecar"] {
        assert!(ran.err.contains(part), "no {part}: {ran:?}");
    }
    let away = format!("redis://:hunter2@127.0.0.1:{}", free_port());
    shell.set("SLUICEGATE_STORE", away);
    let ran = shell.ends(69, &format!("{direct} --limit hourly")).await;
    let secret = ran.err.contains("hunter2");
    assert!(ran.err.contains("Redis") && !secret, "{ran:?}");
    let ran = shell.must(&format!("{direct} --limit open")).await;
    assert!(ran.out.contains("when_store_is_down: allow"), "{ran:?}");
    shell.set("SLUICEGATE_STORE", "rediss//:hunter2@h");
    let ran = shell.ends(64, &format!("{direct} --limit hourly")).await;
    assert!(!ran.err.contains("hunter2"), "{ran:?}");

    shell.set("SLUICEGATE_SIDECAR", "https://elsewhere");
    for mistake in [
        "",
        "--sidecar elsewhere",
        "--sidecar http://h --policy policy.yaml",
        "--store redis://h",
        "--policy nonexistent.yaml",
    ] {
        shell.ends(64, &format!("{decide} {mistake}")).await;
    }
}

#[tokio::test]
async fn the_status_is_the_verdict_when_nobody_reads() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    for (command, status) in [
        ("decide --limit other --key k --cost 5", 0),
        ("decide --limit other --key k --output json", 75),
        ("peek --limit other --key k", 0),
        ("reset --limit other --key k", 0),
        ("top", 0),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let program = shell.folder.path().join("bin/sluicegate");
        let mut process = shell.command(program.to_str().unwrap());
        process.args(command.split(' ')).stdout(Stdio::from(writer));
        let output = process.spawn().unwrap().wait_with_output().await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let ended = (output.status.code(), said.as_str());
        assert_eq!(ended, (Some(status), ""), "{command}");
    }
}

/// Newcomers' finding 12: `decide` waited 25 seconds for a sidecar that accepts and does not answer.
#[tokio::test]
async fn a_sidecar_that_does_not_answer_is_waited_for_as_long_as_timeout_says() {
    let (shell, sidecar) = Shell::with_sidecar().await;
    sidecar.signal("STOP");
    for command in [
        "decide --limit hourly --key k --timeout 200ms",
        "peek --limit hourly --key k --timeout 200ms",
    ] {
        let ran = shell.ends(69, command).await;
        assert!(ran.err.contains("no answer from"), "{ran:?}");
    }
    sidecar.signal("CONT");
    shell
        .must("decide --limit hourly --key k --timeout 1m")
        .await;
}
