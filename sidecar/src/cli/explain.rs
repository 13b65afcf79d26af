//! `sluicegate explain`: shows the checks of a request without making them.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::slice;

use clap::{Args as _, Command, FromArgMatches as _};
use sluicegate::policy::{Expanded, Files, Policy, window_quota};
use sluicegate::telemetry::subject::Subject;
use sluicegate::trial::{DescribedRequest, parts, settings};
use sluicegate_protocol::{Whom, part_of};
use sluicegate_rules::{
    Evaluation, ExplainedReading, Hasher, Question, ResolvedCheck, RuleSet, Settings, config,
    metadata,
};

use super::Failure;
use super::manifests::{nothing_in, read, text_of};
use super::pepper;
use super::stdout::{line, print};

/// Arguments of `explain`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate explain --policy policy.yaml --request 'GET /search?q=x' --header 'x-api-key: k'\n\nMore:\n  docs/top.md"
)]
pub struct Explain {
    /// A file that contains the filter's configuration, as for `check-config`. Without it, the policy's rules are explained.
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    envoy: Option<PathBuf>,
    /// Method and path of the request: `GET /search?q=x`.
    #[arg(long, value_name = "REQUEST", required_unless_present = "expand")]
    request: Option<String>,
    /// Print the policy in the long form, and which defaults apply, instead.
    #[arg(long, requires = "policy", conflicts_with = "request")]
    expand: bool,
    /// A request header: `x-api-key: k`. Can be given several times.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The client's address as Envoy sees it; 192.0.2.1 if none is given.
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// An Envoy attribute: `connection.uri_san_peer_certificate=spiffe://a/b`. Can be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
    /// The claims of a verified token, under the provider's `payload_in_metadata`: `jwt={"sub": "alice"}`.
    #[arg(long, value_name = "PAYLOAD=JSON")]
    claims: Option<String>,
    /// The policy (YAML), which has the rules and the limits.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file with the filters' `pepper`, if there is no `--envoy` that has it.
    #[arg(long, value_name = "FILE", conflicts_with = "envoy")]
    pepper_file: Option<PathBuf>,
    /// The rule set of the policy to explain. Without it, all that the filter may run.
    #[arg(long, value_name = "NAME", requires = "policy")]
    set: Option<String>,
}

/// Before the checks of a request that has some.
pub const CHECKS: &str = "checks, admitted together or not at all:";
/// After what a token lacks.
pub const CLAIMS: &str = " (`--claims`)";
/// With what the line begins of a request that has none.
pub const NO_CHECKS: &str = "no checks";
/// The client's address in documents (RFC 5737).
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const OTHER_PEPPER: &str = "the policy's consumers have keys that were hashed with another pepper, so it is not known whether \
     this one is among them: give the filters', `--pepper-file FILE`";

impl Explain {
    pub fn run(self) -> Result<(), Failure> {
        let mut text = self.text()?;
        if self.request.is_some() && self.peer.is_none() && text.contains("@address=") {
            line!(
                text,
                "the client's address is taken to be {PEER}: `--peer ADDRESS`"
            );
        }
        print(&text)
    }

    /// What it prints with these arguments, after its name, of a request: method and path, and header fields as `name: value`.
    ///
    /// # Errors
    /// Why it prints nothing.
    pub fn told(
        mut words: Vec<String>,
        request: &str,
        fields: impl Iterator<Item = String>,
    ) -> Result<String, String> {
        words.push(format!("--request={request}"));
        words.extend(fields.map(|field| format!("--header={field}")));
        let command = Self::augment_args(Command::new("explain"));
        let matches = command.try_get_matches_from(words);
        let explain = matches.and_then(|matches| Self::from_arg_matches(&matches));
        let text = explain.map_err(|error| error.to_string())?.text();
        text.map_err(|why| why.to_string())
    }

    fn text(&self) -> Result<String, Failure> {
        if let (true, Some(path)) = (self.expand, &self.policy) {
            return expand(path);
        }
        let policy = self.policy.as_deref().map(Policy::load).transpose();
        let policy = policy.map_err(Failure::usage)?;
        let request = self.request()?;
        let policy = policy.as_ref();
        let Some(file) = &self.envoy else {
            let sets = policy.iter().flat_map(|policy| policy.rules.sets.keys());
            let sets: Vec<_> = sets.cloned().collect();
            let with = |pepper| {
                let settings = settings(pepper).map_err(Failure::system)?;
                let described = self.describe_sets(&sets, &settings, &request, policy);
                described.map_err(Failure::usage)
            };
            let given = self.pepper_file.as_deref().map(pepper::read).transpose()?;
            let pepper = given.as_deref().unwrap_or_default();
            let mut text = with(pepper)?;
            if with("another one")? != text {
                let digest = Hasher::new(pepper).pepper_digest();
                let mut of_consumers = policy.iter().flat_map(|policy| policy.peppers());
                if of_consumers.any(|other| other != digest) {
                    return Err(Failure::usage(OTHER_PEPPER));
                } else if given.is_none() {
                    text += "hashes in keys, and the subjects of these keys, are those of an empty `pepper`: `--pepper-file` or `--envoy` has the filters'\n";
                }
            }
            return Ok(text);
        };
        let files = [file.clone()];
        let found = read(&files)?;
        if found.plugins.is_empty() {
            return Err(nothing_in(&files));
        }
        let mut text = String::new();
        for plugin in &found.plugins {
            let at = |field: &str, why: &dyn Display| {
                let (file, line) = (&plugin.source.file, plugin.configuration.line(field));
                Failure::usage(format!("{file}:{line}: {why}"))
            };
            let value = &plugin.configuration.value;
            let read = config::from_json(value).and_then(|_| config::settings(value.clone()));
            let (mut settings, pushed) = read.map_err(|error| at(&error.field, &error))?;
            let pepper = config::read_pepper(&mut settings, |name| std::env::var(name).ok());
            pepper.map_err(|error| at(&error.field, &error))?;
            let described = self.describe_sets(&pushed.sets, &settings, &request, policy);
            text += &described.map_err(|why| at("rule_sets", &why))?;
        }
        Ok(text)
    }

    /// Describes the checks for each of these sets of the policy, or for that of `--set`.
    fn describe_sets(
        &self,
        sets: &[String],
        settings: &Settings,
        request: &DescribedRequest,
        policy: Option<&Policy>,
    ) -> Result<String, String> {
        let policy = policy.ok_or("the rules are in the policy: add `--policy FILE`")?;
        let sets = self.set.as_ref().map_or(sets, slice::from_ref);
        let mut text = String::new();
        for name in sets {
            let rules = policy.rules.compiled(name);
            let rules = rules.ok_or_else(|| format!("the policy has no rule set `{name}`"))?;
            if sets.len() > 1 {
                line!(text, "rule set `{name}`:");
            }
            describe(settings, &Rc::new(rules), request, Some(policy), &mut text);
        }
        Ok(text)
    }

    fn request(&self) -> Result<DescribedRequest, Failure> {
        let headers = self.headers.iter().map(|header| {
            // Envoy keeps the host under its HTTP/2 name.
            let pseudo = header.strip_prefix(":authority:");
            pseudo.map_or_else(
                || parts(header, ':', "name: value"),
                |value| Ok(("host", value)),
            )
        });
        let headers = headers
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::usage)?;
        let request = self.request.as_deref().unwrap_or_default();
        let request = DescribedRequest::new(request, headers, self.peer.unwrap_or(PEER));
        let mut request = request.map_err(Failure::usage)?;
        let attributes = &mut request.attributes;
        for attribute in &self.attribute {
            let (name, value) = parts(attribute, '=', "name=value").map_err(Failure::usage)?;
            attributes.insert(name.to_owned(), value.into());
        }
        if let Some(claims) = &self.claims {
            let form = "payload={\"sub\": \"alice\"}";
            let (payload, json) = parts(claims, '=', form).map_err(Failure::usage)?;
            let wrong = || Failure::usage(format!("`{claims}` is not of the form `{form}`"));
            let claims = serde_json::from_str(json).map_err(|_| wrong())?;
            attributes.insert("metadata".to_owned(), metadata(payload, &claims));
        }
        Ok(request)
    }
}

/// A policy in the long form.
fn expand(path: &Path) -> Result<String, Failure> {
    let (file, text) = text_of(path)?;
    let expanded = Expanded::read(&text, &mut Files::beside(path));
    let policy = expanded.and_then(|expanded| expanded.policy().map(|_| expanded));
    let expanded = policy.map_err(|mistakes| {
        let mistakes = mistakes.iter().map(|mistake| format!("{file}: {mistake}"));
        Failure::usage(mistakes.collect::<Vec<_>>().join("\n"))
    })?;
    let mut text = expanded.text;
    for default in expanded.defaults {
        line!(text, "# default: {default}");
    }
    Ok(text)
}

fn describe(
    settings: &Settings,
    rules: &Rc<RuleSet>,
    request: &DescribedRequest,
    policy: Option<&Policy>,
    text: &mut String,
) {
    let readings = rules.readings(request);
    let several = readings.len() > 1;
    if several {
        line!(text, "the upstream may read the path in several ways:");
        for (number, reading) in (1..).zip(&readings) {
            line!(text, "  {number}: {}", told_reading(reading));
        }
    } else if let Some(ExplainedReading { path: None, .. }) = readings.first() {
        line!(
            text,
            "the path can be read in too many ways to compare them"
        );
    }
    let mut any_differs = false;
    for rule in 0..rules.count() {
        let name = rules.rule_name(rule);
        let within: Vec<String> = (1..)
            .zip(&readings)
            .filter(|(_, reading)| reading.matching.contains(&rule))
            .map(|(number, _): (usize, _)| number.to_string())
            .collect();
        if within.is_empty() {
            any_differs = true;
            line!(text, "rule `{name}` does not match");
        } else if several {
            line!(text, "rule `{name}` matches in {}", within.join(", "));
        } else {
            line!(text, "rule `{name}` matches");
        }
    }
    if any_differs && request.headers.first(":authority").is_empty() {
        line!(
            text,
            "no host was given, and no `hosts` match it: `-H 'host: api.example.com'`"
        );
    }
    for (rule, component) in rules.missing(request) {
        let rule = rules.rule_name(rule);
        let hint = component.starts_with("@jwt").then_some(CLAIMS);
        line!(
            text,
            "rule `{rule}`: the request has no `{component}`{}, which is in its key",
            hint.unwrap_or_default()
        );
    }
    match rules.evaluate(settings, request) {
        Evaluation::Pass => line!(text, "{NO_CHECKS}: the request passes"),
        Evaluation::Refuse(reply) => line!(
            text,
            "{NO_CHECKS}: the request is answered with {}: {}",
            reply.status,
            String::from_utf8_lossy(&reply.body)
        ),
        Evaluation::NoVerdict(_, why) => {
            line!(text, "{NO_CHECKS}, and no verdict: {why}")
        }
        Evaluation::Ask(question) => {
            if !question.checks.is_empty() {
                line!(text, "{CHECKS}");
            }
            for check in &question.checks {
                tell(&question, check, policy, text);
            }
            for shadow in &question.shadows {
                let rule = rules.rule_name(shadow.rule);
                line!(
                    text,
                    "shadow checks (evaluated, not enforced) of rule `{rule}`:"
                );
                for check in &shadow.checks {
                    tell(&question, check, policy, text);
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

fn tell(question: &Question, check: &ResolvedCheck, policy: Option<&Policy>, text: &mut String) {
    let limit = question.limit_name(check);
    line!(
        text,
        "  rule `{}`: limit `{limit}`, key `{}`, cost {}, subject {}",
        question.rules.rule_name(check.rule),
        check.key,
        check.cost,
        Subject::of(&check.key)
    );
    if let Some(quota) = check.quota {
        line!(text, "    asks for a quota of {quota}");
    }
    let Some(policy) = policy else { return };
    let resolved = policy.resolve(limit, &check.key);
    if let Some((limit, key)) = &resolved {
        let subject = Subject::of(key);
        line!(
            text,
            "    of consumers: limit `{limit}`, key `{key}`, subject {subject}"
        );
    }
    let (limit, key) = resolved.unwrap_or((limit, check.key.as_str().into()));
    match policy.limit(limit) {
        None => line!(text, "    the policy has no such limit"),
        Some(limit) => {
            for window in &limit.windows {
                line!(text, "    {}", window_quota(window));
            }
            if let Some(percent) = question.most(check) {
                let most = part_of(limit.most(), percent);
                let reserved = check.cost.min(most);
                line!(
                    text,
                    "    reserves {reserved} of the cost, {percent} % of the quota ({most}) at most, and is settled when the response has ended"
                );
            }
            let own = Whom::Key(key.into_owned());
            let own = policy.in_file(&policy.acts_on(&limit.name, &own));
            let own = own.map(|(_, one)| one);
            if let Some(one) = own.or_else(|| limit.overrides.get(&Whom::AllKeys(true))) {
                let until = one.terms.until.as_deref().unwrap_or("removed");
                line!(
                    text,
                    "    the policy overrides this for the key: {}, until {until}; `sluicegate override list` also shows the overrides in the store",
                    one.terms.allowance(limit.expire_us().is_some())
                );
            }
        }
    }
}
