//! One version: Cargo.toml has it; the chart, CHANGELOG.md and the images that documents and manifests name agree.

use std::path::{Path, PathBuf};

use super::support::{read, repository};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The registry's part of every image's name.
const IMAGES: &str = "ghcr.io/sluicegate/";

/// The version in a heading such as `## 0.1.0 - 2026-11-22`; none in `## Unreleased`.
fn released(heading: &str) -> Option<&str> {
    let (version, date) = heading.strip_prefix("## ")?.split_once(" - ")?;
    let digits = |text: &str, separator| {
        let mut parts = text.split(separator);
        parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (digits(version, '.') && date.len() == 10 && digits(date, '-')).then_some(version)
}

#[test]
fn the_newest_release_in_the_changelog_is_this_version() {
    let changelog = read("CHANGELOG.md");
    let lines = changelog.lines();
    let headings: Vec<_> = lines.filter(|line| line.starts_with("## ")).collect();
    for heading in &headings {
        assert!(
            *heading == "## Unreleased" || released(heading).is_some(),
            "CHANGELOG.md: `{heading}` is neither `## Unreleased` nor like `## {VERSION} - 2026-11-22`"
        );
    }
    let newest = headings.iter().find_map(|heading| released(heading));
    assert_eq!(newest, Some(VERSION), "CHANGELOG.md; Cargo.toml");
}

#[test]
fn the_chart_has_this_version() {
    let chart = read("deploy/helm/sluicegate/Chart.yaml");
    for field in ["version", "appVersion"] {
        let mut lines = chart.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
        let value = value.map(|value| value.trim_matches('"'));
        assert_eq!(value, Some(VERSION), "Chart.yaml: {field}");
    }
}

/// Nobody may have to read YAML to learn what is old.
#[test]
fn every_image_that_compose_pulls_is_in_the_table_of_versions() {
    let (compose, versions) = (read("docker-compose.yml"), read("docs/versions.md"));
    let pulled = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: ${"));
    let pulled = pulled.filter_map(|image| image.split_once(":-")?.1.strip_suffix('}'));
    let mut seen = 0;
    for image in pulled {
        assert!(
            versions.contains(&format!("| `{image}` |")),
            "docs/versions.md: {image}"
        );
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn whatever_names_our_images_names_this_version() {
    let mut files = vec![repository("README.md")];
    for folder in ["docs", "deploy"] {
        text_files(&repository(folder), &mut files);
    }
    let mut seen = 0;
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue; // a picture
        };
        for reference in text.split(IMAGES).skip(1) {
            let beyond = |c: char| !c.is_ascii_alphanumeric() && !"-_.:/".contains(c);
            let reference = reference.split(beyond).next().unwrap_or_default();
            seen += 1;
            let tag = reference.split_once(':').map_or("", |(_, tag)| tag);
            // In a sentence, or a placeholder such as VERSION.
            let tag = tag.trim_end_matches(['.', ':']);
            let number = tag.starts_with(|c: char| c.is_ascii_digit());
            let file = file.display();
            assert!(!number || tag == VERSION, "{file}: {IMAGES}{reference}");
        }
    }
    assert!(seen > 0, "no file names an image of ours");
}

fn text_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text_files(&path, found);
        } else {
            found.push(path);
        }
    }
}
