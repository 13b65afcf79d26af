//! GitHub's workflows: valid YAML, actions pinned by commit, few permissions, and commands that exist.

use serde_json::Value;

use super::support::{read, repository};

fn workflows() -> Vec<(String, Value)> {
    let folder = std::fs::read_dir(repository(".github/workflows")).unwrap();
    let read = |path: std::path::PathBuf| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).unwrap();
        let parsed = serde_saphyr::from_str(&text).expect(&name);
        (name, parsed)
    };
    let all: Vec<_> = folder.map(|entry| read(entry.unwrap().path())).collect();
    assert!(all.len() >= 2, "{all:?}");
    all
}

/// The values of a field, wherever it is.
fn values<'a>(value: &'a Value, field: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(field));
            for value in fields.values() {
                values(value, field, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values(item, field, found)),
        _ => {}
    }
}

#[test]
fn every_action_is_pinned_by_a_commit() {
    for (name, workflow) in workflows() {
        let mut uses = Vec::new();
        values(&workflow, "uses", &mut uses);
        assert!(!uses.is_empty(), "{name}");
        for action in uses {
            let action = action.as_str().unwrap();
            let pinned = action.rsplit_once('@').is_some_and(|(_, commit)| {
                commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
            assert!(pinned || action.starts_with("./"), "{name}: {action}");
        }
    }
}

#[test]
fn a_workflow_may_only_read_unless_a_job_says_otherwise() {
    for (name, workflow) in workflows() {
        let only_read = serde_json::json!({ "contents": "read" });
        assert_eq!(workflow["permissions"], only_read, "{name}");
    }
}

#[test]
fn known_vulnerabilities_are_asked_for_every_night() {
    let nightly = workflows().into_iter().find(|(_, workflow)| {
        let mut runs = Vec::new();
        values(workflow, "run", &mut runs);
        runs.iter().any(|run| *run == "make advisories")
    });
    let (_, nightly) = nightly.expect("a workflow that asks");
    assert!(nightly["on"]["schedule"][0]["cron"].is_string());
}

/// Each by its digest, and in the registry: whoever pulls has no `SHA256SUMS`.
#[test]
fn whatever_a_release_pushes_is_attested() {
    let all = workflows();
    let release = all.iter().find(|(name, _)| name.ends_with("release.yml"));
    let (_, release) = release.expect("a workflow that releases");
    let mut steps = Vec::new();
    values(release, "with", &mut steps);
    for name in ["sluicegate", "sluicegate-filter", "charts/sluicegate"] {
        let subject = format!("${{{{ env.REGISTRY }}}}/{name}");
        let digest = format!("${{{{ steps.pushed.outputs.{} }}}}", name.replace('/', "-"));
        let attested = steps.iter().any(|with| {
            with["subject-name"] == *subject
                && with["subject-digest"] == *digest
                && with["push-to-registry"] == true
        });
        assert!(attested, "{name}");
    }
}

#[test]
fn every_command_of_a_workflow_exists() {
    let makefile = read("Makefile");
    let mut seen = 0;
    for (name, workflow) in workflows() {
        let mut runs = Vec::new();
        values(&workflow, "run", &mut runs);
        for run in runs {
            let words: Vec<_> = run.as_str().unwrap().split_whitespace().collect();
            for (index, word) in words.iter().enumerate() {
                let word = word.trim_start_matches("./");
                let folders = ["deploy/", "tests/", ".ci/"];
                if folders.iter().any(|folder| word.starts_with(folder)) {
                    assert!(repository(word).exists(), "{name}: {word}");
                    seen += 1;
                }
                if word == "make" {
                    let target = words[index + 1];
                    let rule = format!("\n{target}:");
                    assert!(makefile.contains(&rule), "{name}: make {target}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 4, "{seen}");
}
