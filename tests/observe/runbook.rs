//! Runs every command of docs/runbook.md: at three in the morning nobody has time for a typing error.

use std::process::Command;

use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::binary;

use crate::scene::Scene;

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
            let output = Command::new("bash")
                .args(["-euo", "pipefail", "-c", command])
                .envs(addresses.iter().map(|(name, value)| (name, value)))
                .env("PATH", &path)
                .current_dir(repository(""))
                .output()
                .expect("bash");
            let printed = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {printed}{errors}");
            // An empty slowlog is a valid answer.
            assert!(
                !printed.trim().is_empty() || command.contains("slowlog"),
                "{command} prints nothing"
            );
            assert!(!printed.contains("Not Found"), "{command}: {printed}");
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
}
