//! Runs every command of docs/runbook.md: at three in the morning nobody has time for a typing error.

use sluicegate_tests::process::{repository, run, write_program};
use sluicegate_tests::sidecar::binary;
use sluicegate_tests_full::documents::{bash, blocks, text, with_path};

use super::scene::{Scene, now};

/// Runs each block of commands on its own, with the scene's addresses in the variables that the page sets first.
pub fn every_command_works(scene: &Scene) {
    let page = text("docs/runbook.md");
    let blocks = blocks(&page, "sh");
    let (variables, blocks) = blocks.split_first().unwrap();
    let addresses = [
        ("SLUICEGATE_ADMIN", scene.sidecar.admin("")),
        ("SLUICEGATE_SIDECAR", scene.sidecar.url("")),
        ("ENVOY", format!("127.0.0.1:{}", scene.envoy.admin_port)),
        ("REDIS", scene.redis.url()),
        ("POLICY", scene.sidecar.policy.display().to_string()),
        ("RULES", "envoy/envoy.yaml".to_owned()),
    ];
    for (name, _) in &addresses {
        assert!(variables.contains(&format!("export {name}=")), "{name}");
    }
    assert_eq!(variables.lines().count(), addresses.len());
    let commands: Vec<_> = blocks.iter().flat_map(|block| block.lines()).collect();
    for command in &commands {
        let mut bash = bash(command, &repository(""));
        bash.envs(addresses.iter().map(|(name, value)| (name, value)));
        with_path(&mut bash, binary().parent().unwrap().display());
        let printed = run(&mut bash, "bash");
        // An empty slowlog is a valid answer.
        let says = !printed.is_empty() || command.contains("slowlog");
        assert!(says, "{command} prints nothing");
        assert!(!printed.contains("Not Found"), "{command}: {printed}");
    }
    assert!(commands.len() > 20, "{commands:?}");
}

/// Asks Prometheus each query of the page, about any rule, limit and sidecar: each finds instances.
pub async fn every_query_finds_instances(scene: &Scene) {
    for query in blocks(&text("docs/runbook.md"), "promql") {
        let mut any = query.to_owned();
        for name in ["RULE", "LIMIT", "NUMBER"] {
            any = any.replace(&format!("=\"{name}\""), "=~\".+\"");
        }
        let found = scene.prometheus.at(&any, now()).await;
        let mut instances = found.iter().map(|series| series.label("instance"));
        let named = instances.all(|instance| !instance.is_empty());
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
    let block = blocks(&text("docs/runbook.md"), "bash")[0].replace("10.244.0.7:9181", instance);
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
    let script = format!("{block}\nwait\nprintf %s \"$REDIS\" >redis\n");
    let mut bash = bash(&script, folder.path());
    bash.env_remove("REDIS").env("POD_IP", address);
    with_path(&mut bash, folder.path().display());
    run(&mut bash, "bash");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    (read("redis"), read("forwarded"))
}

#[test]
fn in_kubernetes_redis_is_the_one_that_the_sidecars_use() {
    for store in [
        "redis://[redis.default:6379]",
        "redis://[redis]",
        "rediss://app:se%40cret@[redis:6380]/1",
    ] {
        let (before, rest) = store.split_once('[').unwrap();
        let (host, after) = rest.split_once(']').unwrap();
        let store = format!("{before}{host}{after}");
        for is_secret in [true, false] {
            let (found, forwarded) = in_kubernetes("10.1.2.3:9181", "10.1.2.3", &store, is_secret);
            assert_eq!(found, format!("{before}127.0.0.1:6379{after}"));
            let command = "--namespace default port-forward service/redis 6379:";
            assert!(forwarded.contains(command), "{forwarded}");
        }
    }
}

#[test]
fn in_kubernetes_an_instance_can_have_an_ipv6_address() {
    let (_, forwarded) = in_kubernetes("[fd00::7]:9181", "fd00::7", "redis://redis", true);
    let to_envoy = forwarded.contains("port-forward pod/envoy-1 ");
    assert!(to_envoy, "{forwarded}");
}
