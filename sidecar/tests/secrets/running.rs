//! A running sidecar, and everything that it outputs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::Folder;

/// A running sidecar, killed when dropped.
pub struct Running {
    process: Child,
    admin: PathBuf,
    pub log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    pub fn start(folder: &Folder, mut command: Command) -> Self {
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

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn eventually(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < deadline, "{what}: never\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn ask(&self, path: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.admin).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// Posts to one of its sockets and waits for the answer.
    pub fn post(&self, socket: &str, path: &str, headers: &str, body: &str) {
        let mut stream = UnixStream::connect(self.admin.with_file_name(socket)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
    }

    pub fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(path).read_to_string(&mut answer).unwrap();
        answer
    }

    /// The live page's stream up to its first snapshot.
    pub fn page(&self) -> String {
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

    /// All of its outputs, by name.
    pub fn everything(&self) -> [(&'static str, String); 5] {
        [
            ("/readyz", self.get("/readyz")),
            ("/metrics", self.get("/metrics")),
            ("/v1/top", self.get("/v1/top")),
            ("the live page", self.page()),
            ("the log", self.log()),
        ]
    }
}
