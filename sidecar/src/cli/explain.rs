//! `sluicegate explain`: shows the checks of a request without making them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::slice;

use sluicegate::policy::{Policy, window_name};
use sluicegate::telemetry::subject::Subject;
use sluicegate_protocol::Whom;
use sluicegate_rules::config::{self, ConfigError};
use sluicegate_rules::{
    Evaluation, ExplainedReading, Headers, Question, Request, ResolvedCheck, RuleSet, Rules,
    Settings, is_hashed, metadata,
};

use super::Failure;
use super::manifests::{nothing_in, read};
use super::stdout::{line, print};

/// Arguments of `explain`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate explain --policy policy.yaml --request 'GET /search?q=x' --header 'x-api-key: k'"
)]
pub struct Explain {
    /// A file that contains the filter's configuration, as for `check-config`. Without it, the policy's rules are explained,
    /// with hashes as if there was no `pepper`.
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    envoy: Option<PathBuf>,
    /// Method and path of the request: `GET /search?q=x`.
    #[arg(long, value_name = "REQUEST")]
    request: String,
    /// A request header: `x-api-key: k`. Can be given several times.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The client's address as Envoy sees it.
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    peer: std::net::IpAddr,
    /// An Envoy attribute: `connection.uri_san_peer_certificate=spiffe://a/b`. Can be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
    /// The claims of a verified token, under the provider's `payload_in_metadata`: `jwt={"sub": "alice"}`.
    #[arg(long, value_name = "PAYLOAD=JSON")]
    claims: Option<String>,
    /// The policy (YAML), which has the rules of a filter with `version: 2`; with it, the quotas and windows of the limits are
    /// shown too.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The rule set of the policy to explain. Without it, all that the filter may run.
    #[arg(long, value_name = "NAME", requires = "policy")]
    set: Option<String>,
}

/// What Envoy strips from a header; the rules see all other white space.
const BLANK: [char; 2] = [' ', '\t'];

/// The request to explain.
struct DescribedRequest {
    headers: Headers,
    attributes: BTreeMap<String, Vec<u8>>,
}

impl Request for DescribedRequest {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attributes.get(&path.join(".")).cloned()
    }
}

/// What is printed about the request.
struct Explanation<'a> {
    request: DescribedRequest,
    policy: Option<&'a Policy>,
    text: String,
    /// A key depends on the pepper.
    is_hashed: bool,
}

impl Explain {
    pub fn run(self) -> Result<(), Failure> {
        let policy = match &self.policy {
            Some(path) => Some(Policy::load(path).map_err(Failure::usage)?),
            None => None,
        };
        let mut page = Explanation {
            request: self.request()?,
            policy: policy.as_ref(),
            text: String::new(),
            is_hashed: false,
        };
        match &self.envoy {
            Some(file) => self.explain_plugins(file, &mut page)?,
            None => {
                let names = policy.iter().flat_map(|policy| policy.rules.sets.keys());
                let names: Vec<_> = names.cloned().collect();
                page.sets(&Settings::without_pepper(), self.chosen(&names)?)?;
                if page.is_hashed {
                    line!(
                        page.text,
                        "hashes in keys, and the subjects of these keys, are those without a `pepper`: `--envoy` reads it"
                    );
                }
            }
        }
        print(&page.text)
    }

    fn explain_plugins(&self, file: &Path, page: &mut Explanation<'_>) -> Result<(), Failure> {
        let files = [file.to_owned()];
        let found = read(&files)?;
        if found.plugins.is_empty() {
            return Err(nothing_in(&files));
        }
        for plugin in &found.plugins {
            let configuration = &plugin.configuration;
            let at = |error: &ConfigError| {
                let (file, line) = (&plugin.source.file, configuration.line(&error.field));
                Failure::usage(format!("{file}:{line}: {error}"))
            };
            let value = configuration.value.to_string();
            let read = config::read(value.as_bytes()).and_then(|read| config::validate(&read));
            match read.map_err(|error| at(&error))? {
                (settings, Rules::Inline(rules)) => page.describe(&settings, &Rc::new(*rules)),
                (settings, Rules::Pushed(pushed)) if page.policy.is_some() => {
                    page.sets(&settings, self.chosen(&pushed.sets)?)?;
                }
                (_, Rules::Pushed(_)) => {
                    return Err(at(&ConfigError {
                        field: "rule_sets".to_owned(),
                        why: "the rules are in the policy: add `--policy FILE`".to_owned(),
                    }));
                }
            }
        }
        Ok(())
    }

    /// The set that `--set` names, or all of them.
    fn chosen<'a>(&'a self, names: &'a [String]) -> Result<&'a [String], Failure> {
        match &self.set {
            None if names.is_empty() => Err(Failure::usage(
                "the policy has no `rules`: name the filter's configuration (`--envoy`)",
            )),
            None => Ok(names),
            Some(set) if names.contains(set) => Ok(slice::from_ref(set)),
            Some(set) => Err(Failure::usage(format!(
                "there is no rule set `{set}`, only `{}`",
                names.join("`, `")
            ))),
        }
    }

    fn request(&self) -> Result<DescribedRequest, Failure> {
        let (method, path) = parts(&self.request, ' ', "GET /path")?;
        let mut headers = vec![(":method", method), (":path", path.trim_matches(BLANK))];
        for header in &self.headers {
            let (name, value) = parts(header, ':', "name: value")?;
            // Envoy keeps the host under its HTTP/2 name.
            let name = if name.eq_ignore_ascii_case("host") {
                ":authority"
            } else {
                name.trim_matches(BLANK)
            };
            headers.push((name, value.trim_matches(BLANK)));
        }
        let peer = std::net::SocketAddr::new(self.peer, 0).to_string();
        let mut attributes: BTreeMap<_, _> =
            [("source.address".to_owned(), peer.into_bytes())].into();
        for attribute in &self.attribute {
            let (name, value) = parts(attribute, '=', "name=value")?;
            attributes.insert(name.to_owned(), value.into());
        }
        if let Some(claims) = &self.claims {
            let form = "payload={\"sub\": \"alice\"}";
            let (payload, json) = parts(claims, '=', form)?;
            let claims = serde_json::from_str(json).map_err(|_| wrong(claims, form))?;
            attributes.insert("metadata".to_owned(), metadata(payload, &claims));
        }
        Ok(DescribedRequest {
            headers: headers.into_iter().collect(),
            attributes,
        })
    }
}

/// The parts of an argument of this form.
fn parts<'a>(
    argument: &'a str,
    separator: char,
    form: &str,
) -> Result<(&'a str, &'a str), Failure> {
    let parts = argument.split_once(separator);
    parts.ok_or_else(|| wrong(argument, form))
}

fn wrong(argument: &str, form: &str) -> Failure {
    Failure::usage(format!("`{argument}` is not of the form `{form}`"))
}

impl Explanation<'_> {
    /// Describes the checks for each of these sets of the policy.
    fn sets(&mut self, settings: &Settings, names: &[String]) -> Result<(), Failure> {
        for name in names {
            let rules = self.policy.and_then(|policy| policy.rules.compiled(name));
            let why = || Failure::usage(format!("the policy has no rule set `{name}`"));
            let rules = rules.ok_or_else(why)?;
            if names.len() > 1 {
                line!(self.text, "rule set `{name}`:");
            }
            self.describe(settings, &Rc::new(rules));
        }
        Ok(())
    }

    /// Describes the checks of the request.
    fn describe(&mut self, settings: &Settings, rules: &Rc<RuleSet>) {
        let readings = rules.readings(&self.request);
        let several = readings.len() > 1;
        if several {
            line!(self.text, "the upstream may read the path in several ways:");
            for (number, reading) in (1..).zip(&readings) {
                line!(self.text, "  {number}: {}", told_reading(reading));
            }
        } else if let Some(ExplainedReading { path: None, .. }) = readings.first() {
            line!(
                self.text,
                "the path can be read in too many ways to compare them"
            );
        }
        for rule in 0..rules.count() {
            let name = rules.rule_name(rule);
            let within: Vec<String> = (1..)
                .zip(&readings)
                .filter(|(_, reading)| reading.matching.contains(&rule))
                .map(|(number, _): (usize, _)| number.to_string())
                .collect();
            if within.is_empty() {
                line!(self.text, "rule `{name}` does not match");
            } else if several {
                line!(self.text, "rule `{name}` matches in {}", within.join(", "));
            } else {
                line!(self.text, "rule `{name}` matches");
            }
        }
        match rules.evaluate(settings, &self.request) {
            Evaluation::Pass => line!(self.text, "no checks: the request passes"),
            Evaluation::Refuse(reply) => line!(
                self.text,
                "no checks: the request is answered with {}: {}",
                reply.status,
                String::from_utf8_lossy(&reply.body)
            ),
            Evaluation::NoVerdict(_, why) => {
                line!(self.text, "no checks, and no verdict: {why}")
            }
            Evaluation::Ask(question) => {
                if !question.checks.is_empty() {
                    line!(self.text, "checks, admitted together or not at all:");
                }
                for check in &question.checks {
                    self.check(&question, check);
                }
                for shadow in &question.shadows {
                    let rule = rules.rule_name(shadow.rule);
                    line!(
                        self.text,
                        "shadow checks (evaluated, not enforced) of rule `{rule}`:"
                    );
                    for check in &shadow.checks {
                        self.check(&question, check);
                    }
                }
            }
        }
    }

    /// Describes a check.
    fn check(&mut self, question: &Question, check: &ResolvedCheck) {
        self.is_hashed |= is_hashed(&check.key);
        let limit = question.limit_name(check);
        line!(
            self.text,
            "  rule `{}`: limit `{limit}`, key `{}`, cost {}, subject {}",
            question.rules.rule_name(check.rule),
            check.key,
            check.cost,
            Subject::of(&check.key)
        );
        if let Some(quota) = check.quota {
            line!(self.text, "    asks for a quota of {quota}");
        }
        let Some(policy) = self.policy else { return };
        match policy.limit(limit) {
            None => line!(self.text, "    the policy has no such limit"),
            Some(limit) => {
                for window in &limit.windows {
                    line!(
                        self.text,
                        "    {} per {}",
                        window.quota,
                        window_name(window)
                    );
                }
                let own = limit.overrides.get(&Whom::Key(check.key.clone()));
                if let Some(one) = own.or_else(|| limit.overrides.get(&Whom::AllKeys(true))) {
                    let until = one.terms.until.as_deref().unwrap_or("removed");
                    line!(
                        self.text,
                        "    the policy overrides this for the key: {}, until {until}; `sluicegate override list` also shows the overrides in the store",
                        one.terms
                    );
                }
            }
        }
    }
}

/// The path of a reading, and the query parameters that rules use.
fn told_reading(reading: &ExplainedReading) -> String {
    let path = reading.path.as_deref().unwrap_or(b"(not read)");
    let mut text = String::from_utf8_lossy(path).into_owned();
    for (name, value) in &reading.parameters {
        text += &format!(", `{name}` is `{}`", String::from_utf8_lossy(value));
    }
    text
}
