//! The password of `store` stays in the file: whatever is wrong with a policy, no output of the program has it.
//! Finding S21: the parser quoted the lines around an error, and with them the URL of the store.
//!
//! Each way to break a file is tried with each form of a Redis URL, by the real program: at the start, by every
//! command that reads a policy, and on reload, where the log, `/readyz`, `/metrics` and the live page tell of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod broken;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use broken::{BROKEN, GOOD, SECRET, STORES};
use tempfile::TempDir;

/// A folder with a policy in it; the file alone in a folder of its own, as that is watched.
struct Folder {
    folder: TempDir,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("watched")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn policy(&self) -> PathBuf {
        self.path("watched/policy.yaml")
    }

    /// Puts the file there at once: nobody reads half of it.
    fn write(&self, policy: &[u8]) {
        fs::write(self.path("new"), policy).unwrap();
        fs::rename(self.path("new"), self.policy()).unwrap();
    }

    fn sluicegate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command
            .env_remove("SLUICEGATE_STORE")
            .env_remove("RUST_LOG");
        command.args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `serve` on sockets in this folder.
    fn serve(&self) -> Command {
        let mut command = self.sluicegate(&["serve", "--policy"]);
        command.arg(self.policy());
        for (argument, socket) in [("--listen", "decisions"), ("--admin-listen", "admin")] {
            let path = self.path(socket);
            command.args([argument, &format!("unix:{}", path.display())]);
        }
        command
    }
}

/// All files to try: what each is called here, its bytes, and what the message must name.
fn broken(store: &str) -> Vec<(String, Vec<u8>, &'static [&'static str])> {
    let mut files: Vec<_> = BROKEN
        .iter()
        .map(|(from, to, named)| {
            assert!(GOOD.contains(from), "{from} is not in the file");
            let text = GOOD.replacen(from, to, 1).replace("STORE", store);
            (format!("{from} -> {to}"), text.into_bytes(), *named)
        })
        .collect();
    let mut latin = GOOD.replace("STORE", store).into_bytes();
    latin.extend(b"# caf\xe9\n");
    files.push(("not UTF-8".to_owned(), latin, &["UTF-8"]));
    files
}

/// Fails with all of `leaks` at once.
fn assert_none(leaks: &[String]) {
    assert!(
        leaks.is_empty(),
        "{} failures:\n{}",
        leaks.len(),
        leaks.join("\n")
    );
}

fn both(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    said.concat()
}

/// Runs a command that is meant to end, and ends it where it does not.
fn run(mut command: Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

fn fails_without_the_secret_at_the_start(store: &str) {
    let folder = Folder::new();
    let filter = folder.path("filter.yaml");
    fs::write(&filter, "sidecar: { cluster: s }\nrules: []\n").unwrap();
    let filter = filter.display().to_string();
    let mut leaks = Vec::new();
    for (number, (case, file, named)) in broken(store).into_iter().enumerate() {
        folder.write(&file);
        // Of the other commands one for each file, in turn: all of them read it in the same way.
        let (words, last): (&[&str], _) = match number % 5 {
            0 => (&["estimate", "--keys", "1"], "--policy"),
            1 => (&["check-config", "--envoy", &filter], "--policy"),
            2 => (
                &["explain", "--request", "GET /", "--envoy", &filter],
                "--policy",
            ),
            // The files mixed up.
            3 => (&["check-config"], "--envoy"),
            _ => (&["explain", "--request", "GET /"], "--envoy"),
        };
        let mut other = folder.sluicegate(words);
        other.arg(last).arg(folder.policy());
        let commands = [folder.serve(), other];
        for (index, command) in commands.into_iter().enumerate() {
            let words: Vec<_> = command
                .get_args()
                .map(|word| word.display().to_string())
                .collect();
            let output = run(command);
            let said = both(&output);
            if said.contains(SECRET) {
                leaks.push(format!("{case}: {}: {said}", words[0]));
            } else if index == 0 {
                if output.status.code() != Some(64) {
                    leaks.push(format!("{case}: {}: {said}", output.status));
                }
                for name in named.iter().filter(|name| !said.contains(**name)) {
                    leaks.push(format!("{case}: no {name} in {said}"));
                }
            }
        }
    }
    assert_none(&leaks);
}

/// A sidecar that runs, ended when dropped.
struct Running {
    process: Child,
    admin: PathBuf,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    fn start(folder: &Folder, mut command: Command) -> Self {
        let log = folder.path("log");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let errors = file.try_clone().unwrap();
        let running = Self {
            process: command.stdout(file).stderr(errors).spawn().unwrap(),
            admin: folder.path("admin"),
            log,
        };
        running.eventually("it serves", || UnixStream::connect(&running.admin).is_ok());
        running
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn eventually(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < deadline, "{what}: never\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&self, path: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.admin).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// Posts to one of its sockets, and waits for the answer.
    fn post(&self, socket: &str, path: &str, headers: &str, body: &str) {
        let mut stream = UnixStream::connect(self.admin.with_file_name(socket)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
    }

    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(path).read_to_string(&mut answer).unwrap();
        answer
    }

    /// The first snapshot of the live page, and what comes before it.
    fn page(&self) -> String {
        let mut seen = String::new();
        for line in BufReader::new(self.ask("/page/stream")).lines() {
            let line = line.unwrap();
            let done = seen.contains("event: snapshot") && line.starts_with("data: ");
            seen += &line;
            if done {
                break;
            }
        }
        seen
    }

    /// Everything that it tells anybody.
    fn everything(&self) -> [(&'static str, String); 5] {
        [
            ("/readyz", self.get("/readyz")),
            ("/metrics", self.get("/metrics")),
            ("/v1/top", self.get("/v1/top")),
            ("the live page", self.page()),
            ("the log", self.log()),
        ]
    }
}

fn is_refused_without_the_secret_on_reload(store: &str) {
    let folder = Folder::new();
    let good = GOOD.replace("STORE", store);
    folder.write(good.as_bytes());
    let running = Running::start(&folder, folder.serve());
    let refused = || {
        running
            .get("/readyz")
            .contains("the policy file is refused")
    };
    let mut leaks = Vec::new();
    for (number, (case, file, named)) in broken(store).into_iter().enumerate() {
        folder.write(&file);
        running.eventually(&case, refused);
        // The log is written by a thread of its own.
        let told = || running.log().contains("the policy before stays in force");
        running.eventually(&case, told);
        let all = running.everything();
        for (place, said) in &all {
            if said.contains(SECRET) {
                leaks.push(format!("{case}: {place}"));
            }
        }
        for (place, said) in [&all[0], &all[3]] {
            let lost = named.iter().find(|name| !said.contains(**name));
            if let Some(name) = lost {
                leaks.push(format!("{case}: no {name} in {place}: {said}"));
            }
        }
        // So that each leak is told once.
        fs::write(&running.log, "").unwrap();
        // Another text each time: one that has been read is not read again.
        folder.write(format!("{good}# {number}\n").as_bytes());
        running.eventually(&case, || !refused());
    }
    assert_none(&leaks);
}

#[test]
fn s21_at_the_start_with_redis() {
    fails_without_the_secret_at_the_start(STORES[0]);
}

#[test]
fn s21_at_the_start_with_a_cluster() {
    fails_without_the_secret_at_the_start(STORES[2]);
}

#[test]
fn s21_at_the_start_with_a_socket() {
    fails_without_the_secret_at_the_start(STORES[3]);
}

#[test]
fn s21_on_reload_with_redis() {
    is_refused_without_the_secret_on_reload(STORES[0]);
}

#[test]
fn s21_on_reload_with_a_cluster() {
    is_refused_without_the_secret_on_reload(STORES[2]);
}

#[test]
fn s21_on_reload_with_a_socket() {
    is_refused_without_the_secret_on_reload(STORES[3]);
}

#[test]
fn s21_a_mistake_in_the_environment_or_on_the_command_line() {
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
            let mut command = folder.sluicegate(&["serve", "--policy", "nowhere"]);
            command.args(words);
            commands.push(command);
        }
        commands.push(folder.sluicegate(&["serve", "--policy", store]));
        commands.push(folder.sluicegate(&["check-config", "--envoy", store]));
        commands.push(folder.sluicegate(&["estimate", "--policy", "nowhere", "--keys", store]));
        commands.push(folder.sluicegate(&[store]));
    }
    let mut leaks = Vec::new();
    for command in commands {
        let shown = format!("{command:?}");
        let output = run(command);
        let said = both(&output);
        if said.contains(SECRET) || !matches!(output.status.code(), Some(2 | 64)) || said.len() < 20
        {
            leaks.push(format!("{shown}: {}: {said}", output.status));
        }
    }
    assert_none(&leaks);
}

/// A Redis in which `HELLO` is renamed or unknown repeats what it was sent: `HELLO 3 AUTH default PASSWORD`.
fn a_redis_that_repeats_the_password() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    // For each command, one: more do not matter.
                    let commands = String::from_utf8_lossy(&bytes)
                        .matches("\r\nCLIENT\r\n")
                        .count()
                        + 1;
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
fn s21_a_redis_that_refuses_the_password_and_repeats_it() {
    let port = a_redis_that_repeats_the_password();
    let mut leaks = Vec::new();
    for form in ["redis", "redis+cluster"] {
        for database in ["", "0"] {
            let folder = Folder::new();
            let store = format!("{form}://:{SECRET}@127.0.0.1:{port}/{database}");
            // So that what is told is Redis's answer and not the deadline.
            let policy = GOOD.replace("STORE", &store).replace("20ms", "3s");
            folder.write(policy.as_bytes());
            let running = Running::start(&folder, folder.serve());
            let _viewer = running.ask("/page/stream");
            running.eventually("the store is lost", || {
                running.get("/readyz").contains("does not answer")
            });
            running.eventually("the page tells", || running.page().contains("store_lost"));
            for (place, said) in running.everything() {
                if said.contains(SECRET) {
                    leaks.push(format!("{store}: {place}: {said}"));
                }
            }
        }
    }
    assert_none(&leaks);
}

#[test]
fn s21_the_debug_form_of_a_policy_has_no_password() {
    for store in STORES {
        let text = GOOD.replace("STORE", store);
        let policy = sluicegate::policy::Policy::parse(&text).unwrap();
        assert!(!format!("{policy:?} {policy:#?}").contains(SECRET));
    }
}

/// `RUST_LOG=trace` turns on what every library logs: of Redis's answers, of requests, of headers.
#[test]
fn s19_no_filter_of_the_log_lets_a_secret_out() {
    let port = a_redis_that_repeats_the_password();
    let mut leaks = Vec::new();
    for filter in ["trace", "info,redis=trace", "redis::aio=trace,trace"] {
        // The client of a Cluster logs the most.
        for (format, scheme) in [
            ("text", "redis+cluster"),
            ("json", "redis+cluster"),
            ("text", "redis"),
        ] {
            let folder = Folder::new();
            let store = format!("{scheme}://:{SECRET}@127.0.0.1:{port}");
            let policy = GOOD.replace("STORE", &store).replace("20ms", "1s");
            folder.write(policy.as_bytes());
            let mut command = folder.serve();
            command.env("RUST_LOG", filter);
            command.args(["--log-format", format, "--admin-token", SECRET]);
            let running = Running::start(&folder, command);
            // Keys may be secrets too.
            let body = format!(
                r#"{{"decisions": [{{"checks": [{{"limit": "per-key", "key": "{SECRET}"}}]}}]}}"#
            );
            let head = format!("authorization: Bearer {SECRET}\r\n");
            running.post("decisions", "/v1/decide", &head, &body);
            running.post("admin", "/v1/reset", &head, &body.replace("checks", SECRET));
            running.eventually("the failure is told", || {
                running.log().contains("store call failed")
            });
            let log = running.log();
            assert_eq!(
                log.contains("TRACE"),
                filter != "info,redis=trace",
                "{filter}: {log}"
            );
            let library = "redis::";
            let leaking = |line: &&str| line.contains(SECRET) || line.contains(library);
            for line in log.lines().filter(leaking) {
                leaks.push(format!("{filter} {format}: {line}"));
            }
        }
    }
    assert_none(&leaks);
}
