//! The commands of docs/install, run as they are written.
//!
//! Only what cannot be had here is replaced: the published chart and images by ours, and Istio's chart repository by the
//! folder that tests/full/mesh/build filled.

use std::path::Path;

use sluicegate_tests::process::repository;
use sluicegate_tests_full::documents::{bash, blocks, install_page};

use crate::mesh::{CHART, manifest};
use crate::tools::{Tools, cache, run};

/// What the page's last command prints: a limit of 5, and 7 requests.
const IN_FORCE: &str = "200\n200\n200\n200\n200\n429\n429";

/// A page of docs/install, and the proxy for which it is read.
pub type PageFor = (&'static str, &'static str);

/// The commands of a page of docs/install.
#[derive(Debug)]
pub struct Page {
    name: &'static str,
    install: Vec<String>,
    check: String,
    remove: Vec<String>,
    /// Ends the command that installs the chart.
    values: String,
}

impl Page {
    /// Reads a page; its chart is installed with these files of manifests/ in addition.
    pub fn read(page: PageFor, folder: &Path, files: &[&str]) -> Self {
        let (text, (name, _)) = (install_page(page), page);
        let blocks = blocks(&text, "sh").into_iter();
        let mut install: Vec<_> = blocks.map(str::to_owned).collect();
        let check = install.iter().position(|block| block.contains("curl "));
        let mut rest = install.split_off(check.expect("how to see the 429s"));
        let remove = rest.split_off(1);
        let mut values = String::new();
        for file in files {
            let path = folder.join(format!("{name}-{file}"));
            std::fs::write(&path, manifest(file)).expect("a file of our own");
            values += &format!(" --values {}", path.display());
        }
        Self {
            name,
            install,
            check: rest.remove(0),
            remove,
            values,
        }
    }

    /// Runs everything before the check.
    pub fn install(&self, tools: &Tools, folder: &Path) {
        for block in &self.install {
            self.run(tools, folder, block);
        }
    }

    /// Runs the block that sends requests.
    ///
    /// # Panics
    /// The limit is not in force.
    pub fn check(&self, tools: &Tools, folder: &Path) {
        let printed = self.run(tools, folder, &self.check);
        assert_eq!(printed, IN_FORCE, "{}", self.name);
    }

    /// Runs everything after the check.
    ///
    /// # Panics
    /// The page does not say how to remove what it installed.
    pub fn remove(&self, tools: &Tools, folder: &Path) {
        assert!(!self.remove.is_empty(), "{}", self.name);
        for block in &self.remove {
            self.run(tools, folder, block);
        }
    }

    /// Values by which routes choose among sets of rules, and the object that sets what they choose by.
    pub fn by_route(page: PageFor) -> [String; 2] {
        let text = install_page(page);
        let blocks = blocks(&text, "yaml");
        let choice = blocks.iter().position(|block| block.contains("rule_sets"));
        let choice = choice.expect("how a route chooses");
        // The sets, which all proxies have in common, and how a route chooses one.
        let values = blocks[choice - 1..=choice].concat();
        [values, blocks[choice + 1].to_owned()]
    }

    fn run(&self, tools: &Tools, folder: &Path, block: &str) -> String {
        let published = "oci://ghcr.io/sluicegate/charts/sluicegate --version 0.1.0";
        let chart = repository(CHART).display().to_string();
        let istiod = cache().join("charts/istiod").display().to_string();
        let given = "--values sluicegate.yaml";
        let block = block.replace(given, &format!("{given}{}", self.values));
        let block = block.replace(published, &chart);
        let mut command = bash(&block.replace("istio/istiod", &istiod), folder);
        tools.prepare(&mut command);
        run(&mut command)
    }
}
