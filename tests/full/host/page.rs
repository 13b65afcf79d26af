//! The commands of docs/install/host.md, in their order.

use std::process::Command;
use std::time::Duration;

use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::binary;
use sluicegate_tests_full::documents::{blocks, section, text};

use super::machine::{Machine, done};
use super::units;

/// The page's own words for what is downloaded.
const ONLINE: &str = "pip install";
/// Attempts at five 200s and two 429s within two seconds, on a machine that may stand still for some time.
const ATTEMPTS: usize = 10;

/// Answers on 8080: what begins with /slow when there is a file /run/released.
const UPSTREAM: &str = r#"
import http.server, os, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while self.path.startswith("/slow") and not os.path.exists("/run/released"): time.sleep(0.05)
        self.send_response(200)
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Answer).serve_forever()
"#;

#[test]
fn every_command_of_the_page_works_and_the_units_hold() {
    let page = text("docs/install/host.md");
    let machine = Machine::boot();
    archive(&machine);
    // What the page takes for granted: a service behind Envoy, and a Redis.
    std::fs::write(machine.root().join("root/upstream.py"), UPSTREAM).expect("a file");
    machine.must("systemd-run --quiet --unit the-upstream python3 /root/upstream.py");
    machine.must("systemd-run --quiet --unit the-redis redis-server --save '' --port 6379");
    let mut guide = Guide {
        machine: &machine,
        sections: sections(&page),
        folder: "/root".to_owned(),
    };

    guide.follow("Install");
    let started = guide.follow("Start");
    let running = started.matches("active (running)").count();
    assert!(started.contains("LIVE") && running == 2, "{started}");
    units::are_hardened(&machine, &page);
    units::are_confined(&machine);

    let ready = guide.follow("Share the counts");
    let away = ready.contains("has not answered for");
    assert!(ready.contains("ready") && !away, "{ready}");
    machine.must("curl -sSf -H 'x-api-key: k' http://127.0.0.1:10000/");
    machine.eventually("redis-cli keys 'sg:*per-key*' | grep -q per-key");

    let log = guide.follow("Change the policy, read the log");
    assert!(log.contains("serving listen="), "{log}");
    machine.eventually(r#"journalctl --unit envoy | grep -q '"status":429'"#);
    machine.eventually(
        "curl -sS http://127.0.0.1:9181/metrics | grep -qx 'sluicegate_policy_epoch 2'",
    );
    units::keep_the_sidecar_running(&machine);
    read_the_consumers(&machine);
    units::restart_envoy_without_loss(&machine);
    guide.follow("Restart Envoy");

    let before = ["sluicegate", "envoy"].map(|unit| units::main_process(&machine, unit));
    let kept = guide.follow("Upgrade");
    assert!(kept.contains("kept /etc/sluicegate/policy.yaml"), "{kept}");
    machine.must("grep -q 'rate: .7/2s,' /etc/sluicegate/policy.yaml");
    let after = ["sluicegate", "envoy"].map(|unit| units::main_process(&machine, unit));
    assert_ne!(after, before);
    machine.eventually("curl -sSf -H 'x-api-key: other' http://127.0.0.1:10000/");

    guide.follow("Remove");
    let left = machine
        .must("find /etc /usr/local /opt /var/lib /run -iname '*sluicegate*' -o -iname '*envoy*'");
    assert_eq!(left, "", "files are left");
    let units = machine.must("systemctl list-units --all --no-legend 'sluicegate*' 'envoy*'");
    assert_eq!(units.trim(), "", "units are left");
}

/// The commands of docs/consumers.md for a host: the sidecar reads the files that they make, at its start and afterwards.
fn read_the_consumers(machine: &Machine) {
    let page = text("docs/consumers.md");
    let commands = blocks(section(&page, "Add, rotate, remove"), "sh");
    machine.must(commands.last().expect("commands for a host"));
    let policy =
        "  partner:\n    key: { header: x-api-key, consumers: consumers.yaml }\n    rate: 100/1m";
    machine.must(&format!(
        "printf '{policy}\\n' >>/etc/sluicegate/policy.yaml; systemctl restart sluicegate"
    ));
    let ready = machine.must("curl -sSf http://127.0.0.1:9181/readyz");
    assert!(!ready.contains("last good"), "{ready}");
    let add = "sluicegate consumers add beta --file /etc/sluicegate/consumers.yaml --pepper-file /root/sluicegate/pepper.txt </dev/null";
    machine.must(add);
    machine.eventually("journalctl --unit sluicegate | grep -q 'consumers changed'");
    let modes =
        machine.must("stat -c '%a %G' /etc/sluicegate/consumers.yaml /etc/envoy/envoy.yaml");
    assert_eq!(modes, "640 sluicegate-config\n640 sluicegate-envoy\n");
}

/// The page's sections, and where its commands have got to.
struct Guide<'a> {
    machine: &'a Machine,
    sections: Vec<(String, Vec<String>)>,
    folder: String,
}

impl Guide<'_> {
    /// Runs the commands of a section; returns what they print.
    fn follow(&mut self, heading: &str) -> String {
        let section = self.sections.iter().find(|(name, _)| name == heading);
        let (_, blocks) = section.unwrap_or_else(|| panic!("the page has no section {heading}"));
        assert!(!blocks.is_empty(), "{heading} has no commands");
        let mut all = String::new();
        for block in blocks {
            // The next block starts in the folder in which this one ends.
            let script = format!("cd {}\n{block}\npwd >/run/folder", self.folder);
            let mut ran = if block.contains(ONLINE) {
                self.machine.run_online(&script)
            } else {
                self.machine.run(&script)
            };
            let promised = "200\n".repeat(5) + &"429\n".repeat(2);
            let is_as_promised =
                |printed: &str| !block.contains("http_code") || printed == promised;
            for _ in 0..ATTEMPTS {
                if is_as_promised(&ran.out) {
                    break;
                }
                // Until the window is empty again.
                std::thread::sleep(Duration::from_secs(3));
                ran = self.machine.run(&script);
            }
            let holds = ran.status.success() && is_as_promised(&ran.out);
            assert!(holds, "{heading}: {block}\n{ran:?}");
            self.folder = self.machine.must("cat /run/folder").trim().to_owned();
            all += &ran.out;
        }
        all
    }
}

/// The sections of a page: each heading with its blocks of shell.
fn sections(page: &str) -> Vec<(String, Vec<String>)> {
    let sections = page.split("\n## ").skip(1);
    let sections = sections.map(|section| {
        let heading = section.lines().next().unwrap().to_owned();
        let blocks = blocks(section, "sh").into_iter().map(str::to_owned);
        (heading, blocks.collect())
    });
    sections.collect()
}

/// Puts the archive where the page expects it: the release's in the folder that SLUICEGATE_ARCHIVE names, or one that is laid out
/// like it, with the binaries that the tests build.
fn archive(machine: &Machine) {
    let name = format!("sluicegate-{}-linux-amd64", env!("CARGO_PKG_VERSION"));
    if let Ok(released) = std::env::var("SLUICEGATE_ARCHIVE") {
        let file = format!("{name}.tar.gz");
        let from = repository(&released).join(&file);
        std::fs::copy(from, machine.root().join("root").join(file)).expect("make release");
        return;
    }
    let folder = machine.root().join("root").join(&name);
    let stripped = machine.root().join("root/stripped");
    // A debug build is 250 MB, most of it debug information.
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "-o"]).arg(&stripped);
    done(strip.arg(binary()));
    let mut layout = Command::new(repository("deploy/host/layout"));
    layout.arg(&folder).arg(&stripped);
    done(layout.arg(repository("target/filter/sluicegate.wasm")));
    let tar = format!("cd /root && tar -czf {name}.tar.gz {name} && rm -r {name} stripped");
    machine.must(&tar);
}
