//! The sidecar tells systemd that it serves (`Type=notify`), and not before it does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest wait for the message; generous, because test machines may stall.
const WITHIN: Duration = Duration::from_secs(30);

#[test]
fn the_message_comes_when_both_ports_accept_connections() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(
        path("policy.yaml"),
        "limits: { l: { algorithm: fixed_window, windows: [{ quota: 1, per: 1h }] } }\n",
    )
    .unwrap();
    let systemd = UnixDatagram::bind(path("notify")).unwrap();
    systemd.set_read_timeout(Some(WITHIN)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command
        .arg("serve")
        .arg("--policy")
        .arg(path("policy.yaml"));
    for (argument, socket) in [("--listen", "decisions"), ("--admin-listen", "admin")] {
        command.args([argument, &format!("unix:{}", path(socket).display())]);
    }
    command.env("NOTIFY_SOCKET", path("notify"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut sidecar = command.spawn().unwrap();
    let mut message = [0; 64];
    let received = systemd.recv(&mut message);
    let connected = ["decisions", "admin"].map(|socket| UnixStream::connect(path(socket)).is_ok());
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
    let text = String::from_utf8_lossy(&message[..received.unwrap()]).into_owned();
    assert_eq!((text.trim_end(), connected), ("READY=1", [true, true]));
}
