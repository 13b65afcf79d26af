//! Runs every command of docs/runbook.md: at three in the morning nobody has time for a typing error.

use std::process::Command;

use sluicegate_tests::process::{repository, run, write_program};
use sluicegate_tests::sidecar::binary;

use super::scene::{Scene, now};

/// Runs each block of commands on its own, with the scene's addresses in the variables that the page sets first.
pub fn every_command_works(scene: &Scene) {
    let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
    let mut blocks = page
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    let variables = blocks.next().unwrap();
    let addresses = [
        ("SIDECAR", format!("127.0.0.1:{}", scene.sidecar.admin_port)),
        ("ENVOY", format!("127.0.0.1:{}", scene.envoy.admin_port)),
        ("REDIS", scene.redis.url()),
        ("POLICY", scene.sidecar.policy.display().to_string()),
        ("RULES", "envoy/envoy.yaml".to_owned()),
    ];
    for (name, _) in &addresses {
        assert!(variables.contains(&format!("export {name}=")), "{name}");
    }
    assert_eq!(variables.lines().count(), addresses.len());
    let folder = binary();
    let folder = folder.parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut ran = 0;
    for block in blocks {
        for command in block.lines() {
            let mut bash = Command::new("bash");
            bash.args(["-euo", "pipefail", "-c", command]);
            bash.envs(addresses.iter().map(|(name, value)| (name, value)));
            bash.env("PATH", &path).current_dir(repository(""));
            let printed = run(&mut bash, "bash");
            // An empty slowlog is a valid answer.
            assert!(
                !printed.is_empty() || command.contains("slowlog"),
                "{command} prints nothing"
            );
            assert!(!printed.contains("Not Found"), "{command}: {printed}");
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
}

/// Asks Prometheus each query of the page, about any rule and limit: each finds instances.
pub async fn every_query_finds_instances(scene: &Scene) {
    let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
    for block in page.split("```promql\n").skip(1) {
        let query = block.split("```").next().unwrap();
        let any = ["RULE", "LIMIT"]
            .iter()
            .fold(query.to_owned(), |query, name| {
                query.replace(&format!("=\"{name}\""), "=~\".+\"")
            });
        let found = scene.prometheus.at(&any, now()).await;
        let named = found
            .iter()
            .all(|series| !series.label("instance").is_empty());
        assert!(named && !found.is_empty(), "{any}: {found:?}");
    }
}

/// Answers what the page asks of a cluster. The Secret is there if there is a file `url`.
const KUBECTL: &str = r#"#!/bin/sh
case "$*" in
  "--namespace envoy-gateway-system get pods --field-selector status.podIP=$POD_IP --output name") echo pod/envoy-1 ;;
  *" port-forward "*) echo "$*" >>forwarded ;;
  *" get configmap "*) cat policy ;;
  *" get secret sluicegate-redis --ignore-not-found --output jsonpath={.data.url}") [ ! -e url ] || base64 url ;;
  *" exec pod/envoy-1 "*|*" logs pod/envoy-1 "*) ;;
  *) echo "kubectl $*: the test knows no such command" >&2; exit 1 ;;
esac
"#;

/// What the page's block for Kubernetes makes of `REDIS`, and which ports it forwards.
fn in_kubernetes(instance: &str, address: &str, store: &str, is_secret: bool) -> (String, String) {
    let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
    let block = page.split("```bash\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    let block = block.replace("10.244.0.7:9181", instance);
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in [("kubectl", KUBECTL), ("helm", "#!/bin/sh\n")] {
        write_program(&folder.path().join(name), script);
    }
    let policy = if is_secret {
        std::fs::write(folder.path().join("url"), store).unwrap();
        "limits: {}\n".to_owned()
    } else {
        format!("limits: {{}}\nstore: {store}\n")
    };
    std::fs::write(folder.path().join("policy"), policy).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!("{block}\nwait\nprintf %s \"$REDIS\" >redis\n");
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]);
    bash.env_remove("REDIS").env("POD_IP", address);
    bash.env("PATH", format!("{}:{path}", folder.path().display()));
    run(bash.current_dir(folder.path()), "bash");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    (read("redis"), read("forwarded"))
}

#[test]
fn in_kubernetes_redis_is_the_one_that_the_sidecars_use() {
    for (store, redis) in [
        ("redis://redis.default:6379", "redis://127.0.0.1:6379"),
        ("redis://redis", "redis://127.0.0.1:6379"),
        (
            "rediss://app:se%40cret@redis:6380/1",
            "rediss://app:se%40cret@127.0.0.1:6379/1",
        ),
    ] {
        for is_secret in [true, false] {
            let (found, forwarded) = in_kubernetes("10.1.2.3:9181", "10.1.2.3", store, is_secret);
            assert_eq!(found, redis, "a Secret: {is_secret}");
            assert!(
                forwarded.contains("--namespace default port-forward service/redis 6379:"),
                "{forwarded}"
            );
        }
    }
}

#[test]
fn in_kubernetes_an_instance_can_have_an_ipv6_address() {
    let (_, forwarded) = in_kubernetes("[fd00::7]:9181", "fd00::7", "redis://redis", true);
    assert!(
        forwarded.contains("port-forward pod/envoy-1 "),
        "{forwarded}"
    );
}
