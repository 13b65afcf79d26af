//! Files of this repository, and the commands in its documents.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

use crate::process::repository;
use serde_json::Value;

/// The text of a file of this repository.
///
/// # Panics
/// There is no such file.
pub fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = std::fs::read_to_string(repository("").join(path));
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A page of docs/install, by its name and the proxy for which it is read: without the parts below other proxies' names.
pub fn install_page((name, proxy): (&str, &str)) -> String {
    let page = text(format!("docs/install/{name}"));
    let mut is_ours = true;
    let lines = page.split_inclusive('\n').filter(|line| {
        match line.strip_prefix("### ") {
            Some(heading) => is_ours = heading.trim_end() == proxy,
            None => is_ours |= line.starts_with("## "),
        }
        is_ours
    });
    lines.collect()
}

/// A file of this repository as YAML or JSON.
///
/// # Panics
/// It is not.
pub fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of code in this language in a page.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    let found = page.split(fence.as_str()).skip(1);
    let ends = found.map(|rest| rest.split("```").next().unwrap_or_default());
    ends.collect()
}

/// The section of a page below this heading.
///
/// # Panics
/// It has none.
pub fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let found = page.split_once(&format!("\n## {heading}\n"));
    let (_, section) = found.unwrap_or_else(|| panic!("no section {heading}"));
    section.split("\n## ").next().unwrap_or_default()
}

/// A Bash in a folder, which runs a script and ends with its first failure.
pub fn bash(script: &str, folder: &Path) -> Command {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]);
    bash.current_dir(folder);
    bash
}

/// Lets a command find programs in a folder first.
pub fn with_path(command: &mut Command, folder: impl Display) {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{folder}:{path}"));
}

/// Compares a file of this repository with what it should be; with `SLUICEGATE_WRITE`, writes it.
///
/// # Panics
/// They differ; `make` is the target that writes it.
pub fn is_up_to_date(path: &str, should_be: &str, make: &str) {
    if std::env::var_os("SLUICEGATE_WRITE").is_some() {
        std::fs::write(repository(path), should_be).expect("a file of this repository");
    }
    let is = std::fs::read_to_string(repository(path)).unwrap_or_default();
    assert!(is == should_be, "{path} is out of date; run: make {make}");
}
