//! What docs/runbook.md says for Kubernetes: its commands reach a pod, and then the commands that it begins with work.

use sluicegate_tests::process::repository;
use sluicegate_tests_full::documents::{bash, blocks, text};

use crate::mesh::Mesh;
use crate::report::Report;
use crate::tools::run as output_of;

pub fn run(mesh: &Mesh, report: &Report) {
    let page = text("docs/runbook.md");
    let pod = &mesh.pods()[0];
    let mut reach = blocks(&page, "bash")[0].to_owned();
    for (name, example, real) in [
        ("", "envoy-gateway-system", mesh.proxies.0),
        ("", "10.244.0.7:9181", &format!("{}:9181", pod.address)),
        ("RELEASE_NAMESPACE", "default", mesh.namespace),
        ("REDIS_NAMESPACE", "default", mesh.redis),
        ("", "19000", &mesh.admin_port.to_string()),
    ] {
        let example = format!("{name}={example}");
        assert_eq!(reach.matches(&example).count(), 1, "{example}");
        reach = reach.replace(&example, &format!("{name}={real}"));
    }
    // The first block in `sh` sets the variables of a host.
    let start = blocks(&page, "sh")[1];
    assert!(start.contains("/readyz"), "{start}");
    let folder = tempfile::tempdir().expect("a folder");
    // As `redis-cli` would, which need not be here.
    let ping = "[ \"$REDIS\" = redis://127.0.0.1:6379 ]\n\
        until exec 3<>/dev/tcp/127.0.0.1/6379; do sleep 0.2; done\n\
        printf 'PING\\r\\n' >&3\nread -r answer <&3\necho \"$answer\"\n";
    let script = format!(
        "export PATH={}:$PATH\ntrap 'kill $(jobs -p)' EXIT\n{reach}\n\
         until curl -s -o /dev/null \"$SLUICEGATE_ADMIN/healthz\" && curl -s -o /dev/null \"http://$ENVOY/ready\"; do\n\
         sleep 0.2; done\n{start}\nsluicegate check-config --policy \"$POLICY\" --envoy \"$RULES\"\n{ping}",
        // The one of the image.
        repository("target/release-build/linux-amd64").display()
    );
    let mut command = bash(&script, folder.path());
    mesh.tools.prepare(&mut command);
    let printed = output_of(&mut command);
    for expected in ["serving", "sluicegate_decisions_total", "0 errors", "+PONG"] {
        assert!(printed.contains(expected), "no `{expected}`: {printed}");
    }
    report.note(&format!("{}: docs/runbook.md leads to a pod", mesh.name));
}
