//! The sidecar tells systemd that it serves (`Type=notify`), and not before it does; whoever sees an open port may signal.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::running::{Folder, Running};

const POLICY: &str =
    "limits: { l: { algorithm: fixed_window, windows: [{ quota: 1, per: 1h }] } }\n";

#[test]
fn the_message_comes_when_both_ports_accept_connections() {
    let folder = Folder::with(POLICY);
    let systemd = UnixDatagram::bind(folder.path("notify")).unwrap();
    let timeout = Some(Duration::from_secs(60));
    systemd.set_read_timeout(timeout).unwrap();
    let mut command = folder.serve();
    command.env("NOTIFY_SOCKET", folder.path("notify"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut sidecar = command.spawn().unwrap();
    let mut message = [0; 64];
    let received = systemd.recv(&mut message);
    let accepts = |socket| UnixStream::connect(folder.path(socket)).is_ok();
    let connected = ["decisions", "admin"].map(accepts);
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
    let text = String::from_utf8_lossy(&message[..received.unwrap()]).into_owned();
    assert_eq!((text.trim_end(), connected), ("READY=1", [true, true]));
}

#[test]
fn a_signal_as_soon_as_a_port_is_open_ends_nothing() {
    // One start in five ended when the handlers were installed after the ports.
    for _ in 0..20 {
        let folder = Folder::with(POLICY);
        let sidecar = Running::launch(&folder, folder.serve());
        let deadline = Instant::now() + Duration::from_secs(60);
        // Without a pause, so that the signal comes as soon as it may.
        while UnixStream::connect(folder.path("admin")).is_err() {
            assert!(Instant::now() < deadline, "it serves: never");
            std::thread::yield_now();
        }
        sidecar.reread();
        let told = || sidecar.log().contains("SIGHUP: reading the policy file");
        sidecar.eventually("it takes the signal", told);
    }
}
