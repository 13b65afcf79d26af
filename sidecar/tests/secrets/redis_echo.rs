//! A Redis that repeats the password in its errors: neither the outputs nor the log of the sidecar may pass it on.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{Folder, GOOD, Running, SECRET, assert_none};

/// A Redis that does not know `HELLO` quotes the command in its error: `HELLO 3 AUTH default PASSWORD`.
fn a_redis_that_repeats_the_password() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    // One error per command; extra errors do no harm.
                    let asked = String::from_utf8_lossy(&bytes);
                    let commands = asked.matches("\r\nCLIENT\r\n").count() + 1;
                    let error = format!(
                        "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' '{SECRET}' \r\n"
                    );
                    if stream.write_all(error.repeat(commands).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn no_secret_when_redis_repeats_the_password_in_its_error() {
    let port = a_redis_that_repeats_the_password();
    let mut leaks = Vec::new();
    for form in ["redis", "redis+cluster"] {
        for database in ["", "0"] {
            let store = format!("{form}://:{SECRET}@127.0.0.1:{port}/{database}");
            // Long enough that the error is Redis's answer and not the timeout.
            let folder = Folder::with(&GOOD.replace("STORE", &store).replace("20ms", "3s"));
            let running = Running::start(&folder, folder.serve());
            let lost = || running.get("/readyz").contains("has not answered");
            running.eventually("the store is lost", lost);
            running.eventually("the page tells", || {
                running.get("/page/snapshot").contains("store_lost")
            });
            for (place, printed) in running.everything() {
                if printed.contains(SECRET) {
                    leaks.push(format!("{store}: {place}: {printed}"));
                }
            }
        }
    }
    assert_none(&leaks);
}

/// `RUST_LOG=trace` turns on the logs of every library, about Redis's answers, requests and headers.
#[test]
fn no_log_filter_reveals_a_secret() {
    let port = a_redis_that_repeats_the_password();
    let mut leaks = Vec::new();
    for filter in ["trace", "info,redis=trace", "redis::aio=trace,trace"] {
        // The Cluster client logs the most.
        let cluster = "redis+cluster";
        for (format, scheme) in [("text", cluster), ("json", cluster), ("text", "redis")] {
            let store = format!("{scheme}://:{SECRET}@127.0.0.1:{port}");
            let folder = Folder::with(&GOOD.replace("STORE", &store).replace("20ms", "1s"));
            let mut command = folder.serve();
            command.env("RUST_LOG", filter);
            command.args(["--log-format", format, "--admin-token", SECRET]);
            let running = Running::start(&folder, command);
            // A key may be a secret too.
            let body = format!(
                r#"{{"decisions": [{{"checks": [{{"limit": "per-key", "key": "{SECRET}"}}]}}]}}"#
            );
            let head = format!("authorization: Bearer {SECRET}\r\n");
            running.post("decisions", "/v1/decide", &head, &body);
            running.post("admin", "/v1/reset", &head, &body.replace("checks", SECRET));
            let logged = || running.log().contains("store call failed");
            running.eventually("the failure is logged", logged);
            let log = running.log();
            let library = "redis::";
            let leaking = |line: &&str| line.contains(SECRET) || line.contains(library);
            for line in log.lines().filter(leaking) {
                leaks.push(format!("{filter} {format}: {line}"));
            }
        }
    }
    assert_none(&leaks);
}
