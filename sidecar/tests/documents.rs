//! Whatever the documents name exists: files in backticks, links, their anchors, and tests in pages about promises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::support::{read, repository};

/// Endings of files that a document may name.
const ENDINGS: [&str; 13] = [
    "md", "rs", "lua", "py", "js", "mjs", "json", "yaml", "yml", "toml", "svg", "png", "c",
];
/// Beginnings of the paths of a user's machine (`/etc`), of files that users write, and of those that a build or
/// `tests/setup` makes.
const NOT_OURS: [&str; 7] = [
    "",
    ".tools",
    "consumers.yaml",
    "envoy.yaml",
    "policy.schema.json",
    "policy.yaml",
    "target",
];

/// Every file below a folder with this ending, hidden and built ones left out.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|this| this == ending) {
            found.push(path);
        }
    }
}

/// The documents, without their blocks of code. CHANGELOG is history: it may name what is gone.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    files(&repository(""), "md", &mut paths);
    paths.retain(|path| !path.ends_with("CHANGELOG.md"));
    assert!(paths.len() > 15, "{paths:?}");
    let with_prose = |path: PathBuf| (path.clone(), prose(&path));
    paths.into_iter().map(with_prose).collect()
}

fn prose(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let outside = text.split("\n```").step_by(2);
    outside.collect::<Vec<_>>().join("\n")
}

/// What stands in backticks, line by line.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn every_file_that_a_document_names_exists() {
    let top: BTreeSet<String> = std::fs::read_dir(repository(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let mut seen = 0;
    let mut missing = Vec::new();
    for (document, text) in documents() {
        for name in names(&text) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            let first = name.split('/').next().unwrap_or_default();
            let is_name = name.contains(plain) && name.chars().all(plain);
            let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
            let in_the_repository = name.contains('/') && top.contains(first);
            // With `VERSION`: the name of a release's file.
            if !is_name
                || NOT_OURS.contains(&first)
                || name.contains("VERSION")
                || !in_the_repository && !ENDINGS.contains(&ending)
            {
                continue;
            }
            seen += 1;
            // From the repository's root, or beside the document.
            let beside = document.parent().unwrap().join(name);
            if !repository(name).exists() && !beside.exists() {
                missing.push(format!("{}: `{name}`", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
    assert!(seen > 100, "{seen}");
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let mut broken = Vec::new();
    for (document, text) in documents() {
        for link in text.split("](").skip(1) {
            let (link, _) = link.split_once(')').unwrap();
            if link.starts_with("http") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let is_it = |line: &str| line.starts_with('#') && anchor(line) == fragment;
            let has_it = || fragment.is_empty() || prose(&target).lines().any(is_it);
            if !target.exists() || !has_it() {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_test_that_the_pages_on_reliability_and_security_name_exists() {
    let pages = ["docs/reliability.md", "docs/security.md"];
    let page = pages.map(|page| prose(&repository(page))).join("\n");
    let mut paths = Vec::new();
    for folder in ["tests", "sidecar", "filter"] {
        files(&repository(folder), "rs", &mut paths);
    }
    let mut known = BTreeSet::new();
    for path in &paths {
        known.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
        let text = std::fs::read_to_string(path).unwrap();
        let functions = text.split("fn ").skip(1);
        let names = functions.filter_map(|rest| rest.split_once('('));
        known.extend(names.map(|(name, _)| name.to_owned()));
    }
    let rows = page.lines();
    let rows = rows.filter(|line| line.starts_with('|') && line.ends_with("` |"));
    let mut seen = 0;
    for cell in rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ")) {
        for name in names(cell.1) {
            seen += 1;
            let name = name.rsplit("::").next().unwrap();
            let exists = match name.strip_suffix('*') {
                Some(start) => known.iter().any(|known| known.starts_with(start)),
                None => known.contains(name) || name.contains(' '),
            };
            assert!(exists, "{pages:?}: no test `{name}`");
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read("Cargo.toml");
    let (_, list) = manifest.split_once("[workspace.dependencies]").unwrap();
    let (list, _) = list.split_once("\n[").unwrap();
    let names = list.lines().filter_map(|line| line.split_once(" = "));
    let names = names.map(|(name, _)| name);
    let named: BTreeSet<_> = names
        .filter(|name| !name.starts_with("sluicegate"))
        .collect();
    let table = prose(&repository("docs/decisions/dependencies.md"));
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter_map(|row| row.split_once(" | "));
    let names = rows.map(|(name, _)| name);
    let explained: BTreeSet<_> = names.filter(|name| *name != "crate").collect();
    assert_eq!(named, explained);
}

/// Issue 54: what a command says leads to the section on it.
#[test]
fn every_section_that_a_command_names_exists() {
    let mut paths = Vec::new();
    files(&repository("sidecar/src/cli"), "rs", &mut paths);
    let texts = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap());
    let texts: String = texts.collect();
    let mut seen = 0;
    for named in texts
        .split('"')
        .filter(|text| text.starts_with("docs/") && text.contains('#'))
    {
        let (page, section) = named.split_once('#').unwrap_or_else(|| panic!("{named}"));
        let page = prose(&repository(page));
        let mut headings = page.lines().filter(|line| line.starts_with('#'));
        assert!(
            headings.any(|heading| anchor(heading) == section),
            "{named}"
        );
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}
