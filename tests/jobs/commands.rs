//! The command after `--`.

use std::os::unix::process::ExitStatusExt;

use sluicegate_tests::process::eventually;

use sluicegate_tests::sidecar::Sidecar;

use super::shell::{POLICY, Shell};

#[tokio::test]
async fn it_runs_only_if_admitted_and_its_status_is_passed_on() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    let ask = async |cost: u64, script: &str| {
        let decide = format!("sluicegate decide --limit hourly --key k --cost {cost}");
        shell.sh(&format!("{decide} -- sh -c '{script}'")).await
    };
    let ran = ask(1, "echo out; echo err >&2; exit 7").await;
    assert_eq!(ran.code(), 7);
    // Nothing of ours is among what it says.
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("out\n", "err\n"));
    assert_eq!(ask(1, "kill -KILL $$").await.code(), 128 + 9);
    // A program of ours ignores SIGPIPE; the command must not inherit that.
    assert_eq!(ask(1, "kill -PIPE $$").await.code(), 128 + 13);
    assert_eq!(shell.left("hourly", "").await, 7);
    let ran = ask(8, "touch ran").await;
    assert_eq!((ran.code(), ran.out.as_str()), (75, ""), "{ran:?}");
    assert!(ran.err.starts_with("denied: "), "{ran:?}");
    assert!(!shell.has("ran"));
    assert_eq!(shell.left("hourly", "").await, 7);
    // Its own arguments are not ours.
    let ran = shell
        .sluicegate("decide --limit hourly --key k -- printf %s --limit")
        .await;
    assert_eq!(ran.out, "--limit", "{ran:?}");
}

#[tokio::test]
async fn it_has_the_standard_input_and_no_file_of_ours() {
    let (mut shell, redis) = Shell::with_redis().await;
    let sidecar = Sidecar::with(POLICY)
        .store(Some(&redis.url()))
        .start(shell.folder.path())
        .await;
    shell.ask(&sidecar);
    for target in ["", "--policy policy.yaml"] {
        let decide = format!("sluicegate decide --limit hourly --key k {target}");
        let ran = shell.sh(&format!("echo in | {decide} -- cat")).await;
        assert_eq!((ran.code(), ran.out.as_str()), (0, "in\n"), "{ran:?}");
        let list = "ls /proc/self/fd";
        let open = shell.sh(&format!("{decide} -- {list}")).await;
        let without = shell.sh(list).await;
        assert_eq!(open.out, without.out, "{open:?}");
    }
}

async fn units_of_what_cannot_be_started_are_given_back(shell: &Shell, more: &str) {
    shell.write("text", "no program");
    for (program, status) in [
        ("./nothing", 127),
        ("nothing", 127),
        ("./text", 126),
        (".", 126),
    ] {
        let ran = shell
            .sluicegate(&format!(
                "decide --limit hourly --key k --cost 4 --check other=k:2 {more} -- {program}"
            ))
            .await;
        assert_eq!(ran.code(), status, "{program}: {ran:?}");
        assert!(ran.err.contains("the units were returned"), "{ran:?}");
        assert_eq!(shell.left("hourly", more).await, 10, "{program}");
        assert_eq!(shell.left("other", more).await, 5, "{program}");
    }
}

#[tokio::test]
async fn units_of_what_cannot_be_started_are_given_back_to_a_sidecar() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    units_of_what_cannot_be_started_are_given_back(&shell, "").await;
}

#[tokio::test]
async fn units_of_what_cannot_be_started_are_given_back_to_a_store() {
    let (shell, _redis) = Shell::with_redis().await;
    units_of_what_cannot_be_started_are_given_back(&shell, "--policy policy.yaml").await;
}

#[tokio::test]
async fn a_signal_reaches_it() {
    for more in ["--cost", "--reserve"] {
        a_signal_reaches(more).await;
    }
}

/// The command in place of `sluicegate`, or its child.
async fn a_signal_reaches(more: &str) {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    let program = shell.folder.path().join("bin/sluicegate");
    let mut command = shell.command(program.to_str().unwrap());
    command.args([
        "decide", "--limit", "hourly", "--key", "k", more, "1", "--", "sh", "-c",
    ]);
    command.arg("trap 'touch signalled; exit 3' TERM; touch started; while :; do sleep 0.1; done");
    let mut job = command.spawn().unwrap();
    eventually("it runs", async || shell.has("started")).await;
    let id = job.id().unwrap();
    let killed = shell.sh(&format!("kill -TERM {id}")).await;
    assert_eq!(killed.code(), 0, "{killed:?}");
    let status = job.wait().await.unwrap();
    assert_eq!((status.code(), status.signal()), (Some(3), None));
    assert!(shell.has("signalled"));
}

/// Neither of them has anything left in a folder.
#[tokio::test]
async fn a_job_that_is_killed_leaves_no_file() {
    let (mut shell, _sidecar) = Shell::with_sidecar().await;
    let temporary = shell.folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    shell.set("TMPDIR", temporary.to_str().unwrap());
    let decide = "sluicegate decide --limit hourly --key k --reserve 1 -- sh -c";
    let ran = shell.sh(&format!("{decide} 'kill -9 $PPID'")).await;
    assert_eq!(ran.code(), 137, "{ran:?}");
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
}

/// A table: what the command does with the file that it is given, its status, and what is left of ten units after a reserve of 4.
#[tokio::test]
async fn a_command_says_what_it_has_used() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    let decide = "sluicegate decide --limit hourly --key k --check other=k:1 --reserve";
    for (reserve, does, status, left, told) in [
        (4, "echo 1 >$SLUICEGATE_USED", 0, 9, ""),
        (
            4,
            "echo 0 >$SLUICEGATE_USED; echo 3 >>$SLUICEGATE_USED; exit 3",
            3,
            6,
            "",
        ),
        (2, "true", 0, 4, ""),
        (
            0,
            "echo nothing >$SLUICEGATE_USED; kill -9 $$",
            137,
            4,
            "no number",
        ),
        (1, "echo 9 >$SLUICEGATE_USED", 0, 0, ""),
    ] {
        let ran = shell
            .sh(&format!("{decide} {reserve} -- sh -c '{does}'"))
            .await;
        assert_eq!(ran.code(), status, "{does}: {ran:?}");
        assert!(ran.out.is_empty() && ran.err.contains(told), "{ran:?}");
        assert_eq!(ran.err.is_empty(), told.is_empty(), "{ran:?}");
        assert_eq!(shell.left("hourly", "").await, left, "{does}");
    }
    // A check of the same limit and key keeps its cost. A grandchild tells, who has no file descriptors but the first three.
    let decide = "sluicegate decide --limit hourly --key l --check hourly=l:3 --reserve 4";
    let does = "import subprocess; subprocess.run(\"echo 0 >$SLUICEGATE_USED\", shell=True)";
    let ran = shell.sh(&format!("{decide} -- python3 -c '{does}'")).await;
    assert_eq!(ran.code(), 0, "{ran:?}");
    let left = shell.must("peek --limit hourly --key l --output json");
    assert_eq!(left.await.json()["remaining"], 7);
    // More than can be charged at once.
    let decide = "sluicegate decide --limit hourly --key l --reserve 1 -- sh -c";
    let does = "echo 4294967296 >$SLUICEGATE_USED";
    let ran = shell.sh(&format!("{decide} '{does}'")).await;
    assert!(ran.code() == 0 && ran.err.is_empty(), "{ran:?}");
    let left = shell.must("peek --limit hourly --key l --output json");
    assert_eq!(left.await.json()["remaining"], 0);
    // Each has taken one of the other limit. With nothing left, nothing is run.
    assert_eq!(shell.left("other", "").await, 0);
    let decide = "decide --limit hourly --key k --reserve 0";
    shell.ends(75, &format!("{decide} -- touch ran")).await;
    assert!(!shell.has("ran"));
    let mistakes = [
        "decide --limit hourly --key k --reserve 1",
        "decide --check hourly=k:1 --reserve 1 -- true",
        "decide --limit hourly --key k --reserve 11 -- true",
    ];
    for command in mistakes {
        let ran = shell.ends(64, command).await;
        assert!(ran.err.contains("--reserve"), "{ran:?}");
    }
}
