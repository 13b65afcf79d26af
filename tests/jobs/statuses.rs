//! Every exit status, whoever decides.

use std::process::Stdio;

use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::free_port;
use sluicegate_tests::sidecar::Sidecar;

use super::shell::{POLICY, Shell};

/// What jobs see of a policy, with these arguments after each command.
async fn the_status_tells_the_verdict(shell: &Shell, more: &str) {
    let decide = async |arguments: &str| {
        let ran = shell
            .sluicegate(&format!("decide {arguments} {more}"))
            .await;
        assert!(!ran.err.contains("panicked"), "{ran:?}");
        ran
    };
    let ran = decide("--limit hourly --key k --cost 8").await;
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(
        ran.out,
        "admitted: limit `hourly` has 2 of 10 left in a window of 1h\n"
    );
    let ran = decide("--limit hourly --key k --cost 3").await;
    assert_eq!((ran.code(), ran.err.as_str()), (75, ""), "{ran:?}");
    assert!(
        ran.out
            .starts_with("denied: limit `hourly` has 2 of 10 left"),
        "{ran:?}"
    );
    assert_eq!(decide("--limit hourly --key somebody-else").await.code(), 0);

    let ran = decide("--limit hourly --key k --cost 3 --output json").await;
    let verdict = ran.json();
    assert_eq!((ran.code(), &verdict["outcome"]), (75, &"denied".into()));
    assert!(
        verdict["retry_after_ms"].as_u64().unwrap() > 3_000_000,
        "{verdict}"
    );
    let ran = decide("--limit hourly --key k --cost 2 --quiet").await;
    assert_eq!(
        (ran.code(), ran.out.as_str(), ran.err.as_str()),
        (0, "", "")
    );

    // Together or not at all.
    let both = decide("--check other=k:2 --check hourly=k:1").await;
    assert_eq!(both.code(), 75, "{both:?}");
    assert_eq!(shell.left("other", more).await, 5);
    let both = decide("--limit other --key k --cost 2 --check other=a=b:c:3").await;
    assert_eq!(both.code(), 0, "{both:?}");
    assert_eq!(shell.left("other", more).await, 3);

    for (mistake, named) in [
        (
            "--limit hourli --key k",
            "`--limit`: the policy has no limit `hourli`; the nearest name is `hourly`",
        ),
        (
            "--limit hourly --key k --cost 11",
            "`--cost`: 11 is more than limit `hourly` ever holds (10)",
        ),
        ("--check hourly=k:11", "`--check`: 11 is more"),
        ("--limit hourly --key k --cost 0", "--cost"),
        ("--limit hourly", "--key"),
        ("--key k", "--limit"),
        ("--check hourly=k", "--check"),
        ("--limit hourly --key k --wait soon", "--wait"),
    ] {
        let ran = decide(mistake).await;
        assert_eq!(ran.code(), 64, "{mistake}: {ran:?}");
        assert!(ran.err.contains(named), "{mistake}: {ran:?}");
    }
}

#[tokio::test]
async fn a_sidecar_decides() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    the_status_tells_the_verdict(&shell, "").await;
}

#[tokio::test]
async fn a_sidecar_behind_a_unix_socket_decides() {
    let shell = Shell::with_policy();
    let socket = shell.folder.path().join("decisions.sock");
    let _sidecar = Sidecar::with(POLICY)
        .socket(&socket)
        .start(shell.folder.path())
        .await;
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
        "give-back --limit hourly --key k --receipt 6f1c0b5e8d2a4c7f9e3b1a5d7c0f2e4b",
        "top --once",
    ] {
        let ran = shell.sluicegate(command).await;
        assert_eq!(
            (ran.code(), ran.out.as_str()),
            (69, ""),
            "{command}: {ran:?}"
        );
        assert!(
            ran.err.contains(&nobody) && ran.err.contains("refused"),
            "{ran:?}"
        );
    }
    let ran = shell
        .sluicegate("decide --limit hourly --key k --output json")
        .await;
    assert_eq!(
        (ran.code(), &ran.json()["outcome"]),
        (69, &"unavailable".into())
    );

    let direct = "decide --key k --policy policy.yaml";
    let ran = shell.ends(64, &format!("{direct} --limit hourly")).await;
    for part in ["policy.yaml", "`memory`", "--store", "--sidecar"] {
        assert!(ran.err.contains(part), "no {part}: {ran:?}");
    }
    shell.set(
        "SLUICEGATE_STORE",
        format!("redis://:hunter2@127.0.0.1:{}", free_port()),
    );
    let ran = shell.ends(69, &format!("{direct} --limit hourly")).await;
    assert!(
        ran.err.contains("Redis") && !ran.err.contains("hunter2"),
        "{ran:?}"
    );
    let ran = shell.sluicegate(&format!("{direct} --limit open")).await;
    assert_eq!(ran.code(), 0, "the policy says `allow`: {ran:?}");
    assert!(ran.out.contains("when_store_is_down: allow"), "{ran:?}");
    shell.set("SLUICEGATE_STORE", "rediss//:hunter2@h");
    let ran = shell.ends(64, &format!("{direct} --limit hourly")).await;
    assert!(!ran.err.contains("hunter2"), "{ran:?}");

    shell.set("SLUICEGATE_SIDECAR", "https://elsewhere");
    shell.ends(64, "decide --limit hourly --key k").await;
    for mistake in [
        "--sidecar elsewhere",
        "--sidecar http://h --policy policy.yaml",
        "--store redis://h",
        "--policy nonexistent.yaml",
    ] {
        let ran = shell
            .sluicegate(&format!("decide --limit hourly --key k {mistake}"))
            .await;
        assert_eq!(ran.code(), 64, "{mistake}: {ran:?}");
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
        let mut process =
            shell.command(shell.folder.path().join("bin/sluicegate").to_str().unwrap());
        process.args(command.split(' ')).stdout(Stdio::from(writer));
        let output = process.spawn().unwrap().wait_with_output().await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), said.as_str()),
            (Some(status), ""),
            "{command}"
        );
    }
}
