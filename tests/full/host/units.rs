//! What systemd says of the units, and what the running services may not do.

use super::machine::Machine;

/// Units, and the exposure of each in tenths, at most: as docs/install/host.md says it.
const EXPOSURE: [(&str, u32); 2] = [("sluicegate", 12), ("envoy", 14)];

/// The units are valid and as hardened as the page says.
pub fn are_hardened(machine: &Machine, page: &str) {
    for (unit, exposure) in EXPOSURE {
        let verify = machine.run(&format!("systemd-analyze verify --man=no {unit}.service"));
        let valid = verify.status.success() && verify.err.is_empty();
        assert!(valid, "{unit}: {verify:?}");
        let security = format!("security --no-pager --threshold={exposure} {unit}.service");
        machine.must(&format!("systemd-analyze {security}"));
        let shown = format!("{}.{}", exposure / 10, exposure % 10);
        assert!(page.contains(&shown), "the page lacks {shown} of {unit}");
    }
}

/// The processes run with what the units promise.
pub fn are_confined(machine: &Machine) {
    for (unit, _) in EXPOSURE {
        let id = main_process(machine, unit);
        let status = machine.must(&format!("cat /proc/{id}/status"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("no {name} in {status}"));
            line.trim().to_owned()
        };
        let is_root = field("Uid:").split_whitespace().any(|id| id == "0");
        assert!(!is_root, "{unit} runs as root: {status}");
        let none = "0".repeat(16);
        let expected = [&none, &none, "1", "2"];
        let found = ["CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"].map(field);
        assert_eq!(found, expected, "{unit}");
        // In the service's own view of the file system, even root cannot write.
        for folder in ["/usr/local/bin", "/etc", "/var/lib"] {
            let write = format!("nsenter --target {id} --mount touch {folder}/written");
            let write = machine.run(&write);
            let refused = !write.status.success() && write.err.contains("Read-only");
            assert!(refused, "{unit}: {folder}: {write:?}");
        }
    }
}

/// A killed sidecar is started again; one whose policy is invalid serves the last good one, or is not started again; a stop is
/// a drain.
pub fn keep_the_sidecar_running(machine: &Machine) {
    let before = main_process(machine, "sluicegate");
    machine.must(&format!("kill -KILL {before}"));
    machine.eventually("curl -sSf http://127.0.0.1:9181/healthz");
    assert_ne!(main_process(machine, "sluicegate"), before);

    machine.must("cd /etc/sluicegate && cp policy.yaml good && echo 'limits: {' >policy.yaml");
    let reload = machine.run("systemctl reload sluicegate");
    assert!(!reload.status.success(), "it is reloaded: {reload:?}");
    machine.must("curl -sSf http://127.0.0.1:9181/healthz");
    let stop =
        machine.must("systemctl stop sluicegate; systemctl show --property Result sluicegate");
    assert_eq!(stop.trim(), "Result=success");
    machine.must("systemctl start sluicegate");
    let ready = machine.must("curl -sS http://127.0.0.1:9181/readyz");
    assert!(ready.contains("the last good policy"), "{ready}");
    machine.must("systemctl stop sluicegate && rm /var/lib/sluicegate/*");
    let start = machine.run("systemctl start sluicegate");
    assert!(!start.status.success(), "it starts: {start:?}");
    let shown = machine.must("systemctl show --property NRestarts,ExecMainStatus sluicegate");
    let once = shown.contains("NRestarts=0") && shown.contains("ExecMainStatus=64");
    assert!(once, "{shown}");
    // Without `reset-failed` there were too many starts in half a minute.
    machine.must(
        "cd /etc/sluicegate && mv good policy.yaml && systemctl reset-failed && systemctl start sluicegate",
    );
    // `Type=notify`: when `start` returns, it serves.
    machine.must("curl -sSf http://127.0.0.1:9181/readyz");
}

/// Requests that are under way when Envoy is told to restart are answered before it does.
pub fn restart_envoy_without_loss(machine: &Machine) {
    // The example's 15 s may pass on a busy machine.
    machine.must("sed -i 's|{ cluster: upstream }|{ cluster: upstream, timeout: 60s }|' /etc/envoy/envoy.yaml; systemctl restart envoy");
    machine.eventually("curl -sSf -H 'x-api-key: before' http://127.0.0.1:10000/");
    let before = main_process(machine, "envoy");
    machine.must(
        "for n in 1 2 3 4 5 6 7 8 9; do
           systemd-run --quiet --unit slow-$n --remain-after-exit curl -sSf --max-time 120 -H \"x-api-key: slow-$n\" http://127.0.0.1:10000/slow
         done",
    );
    let active = "http://127.0.0.1:9901/stats?filter=cluster.upstream.upstream_rq_active";
    machine.eventually(&format!("curl -sS '{active}' | grep -q ': 9'"));
    machine.must("systemctl restart --no-block envoy");
    machine.eventually("! curl -sS http://127.0.0.1:10000/");
    machine.must("touch /run/released");
    machine.eventually("curl -sSf -H 'x-api-key: after' http://127.0.0.1:10000/");
    assert_ne!(main_process(machine, "envoy"), before);
    for n in 1..=9 {
        let result = machine.must(&format!(
            "systemctl show --property Result --property SubState slow-{n}"
        ));
        assert_eq!(result, "Result=success\nSubState=exited\n", "slow-{n}");
    }
    machine.must("systemctl stop 'slow-*'");
}

/// The id of a unit's main process.
pub fn main_process(machine: &Machine, unit: &str) -> String {
    let id = machine.must(&format!("systemctl show --value --property MainPID {unit}"));
    id.trim().to_owned()
}
