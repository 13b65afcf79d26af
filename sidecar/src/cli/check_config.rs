//! `sluicegate check-config`: reports mistakes before a request meets them.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sluicegate::lint::{Finding, Found, FoundPolicy, Plugin, Severity, WrittenPolicy, lint};
use sluicegate::policy::{Files, Policy, changes, line_and_why};
use sluicegate_rules::config::fingerprint;

use super::Failure;
use super::direct::store_address;
use super::manifests::{nothing_in, read, text_of};
use super::output::{Output, totals};
use super::stdout::line;

/// Arguments of `check-config`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate check-config --policy policy.yaml --envoy envoy.yaml\n\n\
                  In CI:\n  helm template . | sluicegate check-config --envoy -\n\nMore:\n  docs/filter.md#checking-manifests"
)]
pub struct CheckConfig {
    /// The policy (YAML), with its rules. Without it, the filter's configuration is checked against the policy in a ConfigMap
    /// of the files, if there is one.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file that contains the filter's configuration: an Envoy configuration, Kubernetes manifests (Istio's WasmPlugin and
    /// ServiceEntry, Envoy Gateway's EnvoyExtensionPolicy, EnvoyPatchPolicy and EnvoyProxy, ConfigMap), or the filter's
    /// configuration alone. A folder stands for all YAML and JSON files in it, `-` for standard input. Can be given several
    /// times; all files are checked together. Without it, only the policy is checked.
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    envoy: Vec<PathBuf>,
    /// The policy that `--policy` is to replace: prints what changes, which counts start at zero, and what requires a restart.
    #[arg(long, value_name = "FILE", requires = "policy")]
    before: Option<PathBuf>,
    /// Output format; `json` prints one object with all findings.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

const REFUSED: &str =
    "the sidecar refuses this policy: a running one keeps the old, a new one does not start";
const DETAILS: &str = "`sluicegate explain --expand` tells of which limits";

/// The findings so far.
#[derive(Default, Serialize)]
pub struct Report {
    errors: usize,
    warnings: usize,
    pub findings: Vec<Finding>,
    #[serde(skip)]
    text: String,
}

impl Report {
    /// Adds a finding, unless it is there already: several plugins can run the same rules.
    fn add(&mut self, finding: Finding) {
        if self.findings.contains(&finding) {
            return;
        }
        match finding.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        line!(self.text, "{finding}");
        self.findings.push(finding);
    }

    /// Adds a warning of the settings around a plugin.
    fn warn(&mut self, plugin: &Plugin, message: &str) {
        self.add(Finding {
            file: plugin.source.file.clone(),
            line: plugin.line,
            severity: Severity::Warning,
            message: plugin.source.object() + message,
        });
    }

    /// Lints a policy.
    fn policy<'a>(&mut self, found: &'a FoundPolicy) -> WrittenPolicy<'a> {
        let source = &found.source;
        let what = match found.field.as_str() {
            "" => String::new(),
            field => format!("{}`{field}`: ", source.object()),
        };
        let policy = WrittenPolicy::read(found);
        for mistake in policy.policy.as_ref().err().into_iter().flatten() {
            self.add_mistake((&source.file, found.line), &what, mistake);
        }
        if policy.policy.is_err() {
            line!(self.text, "{}: {what}{REFUSED}", source.file);
        }
        policy.lint().into_iter().for_each(|one| self.add(one));
        // `a`, `b`: `match: all`: applies to every request
        let defaults = policy.expanded.defaults.iter();
        let defaults = defaults.filter_map(|told| told.split(": `").nth(1)?.split('`').next());
        let defaults: Vec<_> = defaults.collect();
        if !defaults.is_empty() {
            let (file, defaults) = (&source.file, defaults.join("`, `"));
            line!(
                self.text,
                "{file}: {what}defaults: `{defaults}` ({DETAILS})"
            );
        }
        // To be compared with what `sluicegate rollout` shows.
        if let Ok(Some(digest)) = policy.policy.as_ref().map(|policy| policy.rules.told()) {
            line!(self.text, "{}: {what}rules {digest}", source.file);
        }
        policy
    }

    /// Adds a mistake, which names its line of the text.
    fn add_mistake(&mut self, (file, before): (&str, usize), what: &str, mistake: &str) {
        let (number, why) = line_and_why(mistake).unwrap_or((1, mistake));
        self.add(Finding {
            file: file.to_owned(),
            line: before + number,
            severity: Severity::Error,
            message: format!("{what}{why}"),
        });
    }

    fn print(self, output: Output) -> Result<(), Failure> {
        output.print(&self, |report| {
            let totals = totals(report.errors, report.warnings);
            format!("{}{totals}\n", report.text)
        })?;
        if self.errors == 0 {
            Ok(())
        } else {
            Err(Failure::usage("the configuration has errors"))
        }
    }
}

impl CheckConfig {
    pub fn run(self) -> Result<(), Failure> {
        self.report()?.print(self.output)
    }

    /// A policy with these files of Envoy's.
    pub fn of(policy: &Path, envoy: &[PathBuf]) -> Self {
        Self {
            policy: Some(policy.to_owned()),
            envoy: envoy.to_owned(),
            before: None,
            output: Output::default(),
        }
    }

    /// What is found.
    pub fn report(&self) -> Result<Report, Failure> {
        let mut report = Report::default();
        let before = self.before.as_deref().map(given).transpose()?;
        let given = self.policy.as_deref().map(given).transpose()?;
        let mut policies: Vec<_> = given.iter().map(|one| report.policy(one)).collect();
        // What `serve` would use in this environment.
        if let [
            WrittenPolicy {
                policy: Ok(policy), ..
            },
        ] = policies.as_slice()
        {
            store_address(policy, None)?;
        }

        if let (
            Some(before),
            [
                WrittenPolicy {
                    policy: Ok(new),
                    source,
                    ..
                },
            ],
        ) = (before, policies.as_slice())
        {
            let old = Policy::read(&before.text, &mut before.files.clone());
            let file = before.source.file;
            let old = old.map_err(|why| Failure::usage(format!("{file}: {why}")))?;
            for change in changes(&old, new) {
                line!(report.text, "since {file}: {change}");
            }
            let gone = old.rules.sets.keys();
            for set in gone.filter(|set| !new.rules.sets.contains_key(*set)) {
                report.add(Finding {
                    file: source.file.clone(),
                    line: 1,
                    severity: Severity::Warning,
                    message: format!(
                        "`rules` has no set `{set}` any more: an Envoy that lists it in `rule_sets` takes no rules of this policy; take it out there first, or keep it as `{set}: {{ rules: [] }}`"
                    ),
                });
            }
        }
        if self.envoy.is_empty() {
            if report.errors == 0 {
                let valid = "the policy is valid; no filter configuration was checked (`--envoy`)";
                line!(report.text, "{valid}");
            }
            return Ok(report);
        }
        let found = read(&self.envoy)?;
        if found.plugins.is_empty() && found.policies.is_empty() {
            return Err(nothing_in(&self.envoy));
        }
        for one in &found.policies {
            let policy = report.policy(one);
            if self.policy.is_none() {
                policies.push(policy);
            }
        }
        for plugin in &found.plugins {
            let policy = policy_of(plugin, &policies);
            if policy.is_none() && policies.len() > 1 {
                let message = "several policies might be this plugin's, so its limits are not checked; name one with `--policy`";
                report.warn(plugin, message);
            }
            check(&mut report, plugin, &found, policy);
        }
        Ok(report)
    }
}

/// The policy in this file.
fn given(path: &Path) -> Result<FoundPolicy, Failure> {
    let (file, text) = text_of(path)?;
    let mut found = FoundPolicy::default();
    (found.source.file, found.text) = (file, text);
    found.files = Files::beside(path);
    Ok(found)
}

fn check(report: &mut Report, plugin: &Plugin, all: &Found, policy: Option<&WrittenPolicy<'_>>) {
    for finding in lint(plugin, &all.surroundings, policy) {
        report.add(finding);
    }
    if let Some(module) = plugin.module.as_deref().filter(|module| is_lost(module)) {
        let why = format!(
            "`filename`: the folder of {module} has no such file; build or install the filter"
        );
        report.warn(plugin, &why);
    }
    // To be compared with the label `configuration` of `sluicegate_filter_info`.
    let line = plugin.configuration.line("");
    let configuration = fingerprint(&plugin.configuration.value);
    let (file, object) = (&plugin.source.file, plugin.source.object());
    line!(
        report.text,
        "{file}:{line}: {object}configuration {configuration}"
    );
    if policy.is_none() {
        let why = "its rules are in the policy, which was not checked (`--policy`)";
        line!(report.text, "{file}:{line}: {object}{why}");
    }
}

/// Whether a file is missing in a folder that is here. Without the folder, Envoy runs elsewhere.
fn is_lost(file: &str) -> bool {
    let file = Path::new(file);
    file.parent().is_some_and(Path::is_dir) && !file.exists()
}

/// The policy of a plugin's sidecar: the only one, or the only one of its namespace.
fn policy_of<'a>(
    plugin: &Plugin,
    policies: &'a [WrittenPolicy<'a>],
) -> Option<&'a WrittenPolicy<'a>> {
    if let [policy] = policies {
        return Some(policy);
    }
    let namespace = &plugin.source.namespace;
    let here = policies.iter();
    let mut here = here.filter(|policy| policy.source.namespace == *namespace);
    match (here.next(), here.next()) {
        (Some(policy), None) => Some(policy),
        _ => None,
    }
}
