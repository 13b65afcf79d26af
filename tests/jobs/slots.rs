//! `sluicegate run`: slots that are in use while a command runs.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::process::Child;

use super::shell::{POLICY, Ran, Shell};

/// Longer than any of these tests.
const HOLD: &str = "exec sleep 120";

fn started(shell: &Shell, arguments: &str) -> Child {
    let text = format!("exec sluicegate run --limit gpu --key k {arguments}");
    shell.command("sh").args(["-c", &text]).spawn().unwrap()
}

/// By the shell's own `kill`: a bare Debian has no such program.
async fn signal(shell: &Shell, child: &Child, name: &str) {
    let id = child.id().unwrap();
    let sent = shell.sh(&format!("kill -s {name} {id}")).await;
    assert_eq!(sent.code(), 0, "{sent:?}");
}

async fn free(shell: &Shell, slots: u64) {
    eventually(&format!("{slots} slots are free"), async || {
        shell.left("gpu", "").await == slots
    })
    .await;
}

#[tokio::test]
async fn a_slot_is_in_use_while_the_command_runs_and_its_status_is_passed_on() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    let run = async |script: &str| -> Ran {
        shell
            .sh(&format!(
                "sluicegate run --limit gpu --key k -- sh -c '{script}'"
            ))
            .await
    };
    let ran = run("echo out; sluicegate peek --limit gpu --key k >&2; exit 7").await;
    assert_eq!((ran.code(), ran.out.as_str()), (7, "out\n"), "{ran:?}");
    assert!(ran.err.contains("1 of 2"), "{ran:?}");
    assert_eq!(run("kill -TERM $$").await.code(), 128 + 15);
    assert_eq!(shell.left("gpu", "").await, 2);
    // Two run, longer than a slot lasts without a renewal; the third is told, or waits.
    let mut holders = [
        started(&shell, &format!("-- sh -c '{HOLD}'")),
        started(&shell, &format!("-- sh -c 'echo $$ >orphan; {HOLD}'")),
    ];
    free(&shell, 0).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let ran = run("touch ran").await;
    assert_eq!((ran.code(), ran.out.as_str()), (75, ""), "{ran:?}");
    assert!(
        ran.err.contains("limit `gpu` has 0 of 2 at once left"),
        "{ran:?}"
    );
    assert!(!shell.has("ran"));
    // An operator frees both slots; both commands go on, and renew them.
    let reset = "reset --limit gpu --key k";
    let told = shell.must(reset).await.out;
    assert!(told.contains("go on, and count again"), "{told}");
    free(&shell, 0).await;
    let waits = started(&shell, "--wait 50s -- touch waited");
    // A signal is the command's, and frees its slot.
    signal(&shell, &holders[0], "TERM").await;
    let ended = holders[0].wait().await.unwrap();
    assert_eq!(ended.code(), Some(128 + 15));
    let waited = waits.wait_with_output().await.unwrap();
    assert_eq!(waited.status.code(), Some(0), "{waited:?}");
    assert!(shell.has("waited"));
    // What is killed cannot free it, and the slot ends by itself.
    signal(&shell, &holders[1], "KILL").await;
    assert_eq!(holders[1].wait().await.unwrap().signal(), Some(9));
    free(&shell, 2).await;
    let ended = shell.sh("kill $(cat orphan)").await;
    assert_eq!(ended.code(), 0, "its command goes on: {ended:?}");
    let told = shell.must("reset --limit gpu --key other").await.out;
    assert_eq!(
        told,
        "limit `gpu`: all slots of this key are free; none was in use\n"
    );
}

#[tokio::test]
async fn what_cannot_run_holds_nothing() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    let ran = shell
        .sluicegate("run --limit gpu --key k --check hourly=k:3 -- ./nothing")
        .await;
    assert_eq!(ran.code(), 127, "{ran:?}");
    assert_eq!(shell.left("hourly", "").await, 10);
    for (arguments, code, why) in [
        (
            "run --limit hourly --key k -- true",
            64,
            "use `sluicegate decide`",
        ),
        (
            "decide --limit gpu --key k -- true",
            64,
            "use `sluicegate run`",
        ),
        ("run --limit gpu --key k --cost 3 -- true", 64, "--cost"),
    ] {
        let ran = shell.ends(code, arguments).await;
        assert!(ran.err.contains(why), "{arguments}: {ran:?}");
        assert_eq!(shell.left("hourly", "").await, 10);
    }
    assert_eq!(shell.left("gpu", "").await, 2);
}

#[tokio::test]
async fn a_command_whose_slot_may_be_lost_goes_on_unless_it_is_strict() {
    let (mut shell, redis) = Shell::with_redis().await;
    let policy = Sidecar::with(POLICY).store(Some(&redis.url()));
    let mut sidecar = policy.start(shell.folder.path()).await;
    shell.ask(&sidecar);
    let lenient = started(&shell, &format!("-- sh -c '{HOLD}'"));
    let strict = started(&shell, &format!("--strict -- sh -c '{HOLD}'"));
    free(&shell, 0).await;
    // A restart is shorter than a slot lasts.
    sidecar.restart().await;
    assert_eq!(shell.left("gpu", "").await, 0);
    sidecar.kill();
    let ended = tokio::time::timeout(Duration::from_secs(30), strict.wait_with_output()).await;
    let ended = ended.expect("an end in time").unwrap();
    assert_eq!(ended.status.code(), Some(69), "{ended:?}");
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains("the slot may be lost"), "{told}");
    // The other has its slot again as soon as there is a sidecar.
    sidecar.restart().await;
    free(&shell, 1).await;
    signal(&shell, &lenient, "TERM").await;
    let ended = lenient.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(128 + 15));
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains("the slot may be lost"), "{told}");
    free(&shell, 2).await;
}

/// Whoever asked is gone before the store has answered: nobody has the receipt.
#[tokio::test]
async fn slots_that_nobody_was_told_of_are_freed() {
    let (mut shell, redis) = Shell::with_redis().await;
    let policy = POLICY.replace(
        "concurrency, windows: [{ quota: 2, per: 3s }]",
        "concurrency, windows: [{ quota: 2, per: 1h }]",
    );
    let sidecar = Sidecar::with(&policy).store(Some(&redis.url()));
    let sidecar = sidecar.start(shell.folder.path()).await;
    shell.ask(&sidecar);
    assert_eq!(shell.left("gpu", "").await, 2);
    redis.pause();
    let body = r#"{"decisions":[{"checks":[{"limit":"gpu","key":"k"}]}]}"#;
    let head = format!(
        "POST /v1/decide HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut asks = TcpStream::connect(("127.0.0.1", sidecar.port))
        .await
        .unwrap();
    asks.write_all(head.as_bytes()).await.unwrap();
    // Until the call has been sent.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(asks);
    redis.resume();
    eventually("the call has run", async || {
        shell.left("gpu", "").await == 1
    })
    .await;
    free(&shell, 2).await;
}
