//! `sluicegate check`: walks from the policy to the store, the sidecar and the filters, and says what is wrong.

mod report;
mod request;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sluicegate::decide::digest;
use sluicegate::policy::Policy;
use sluicegate::server::READYZ_PATH;
use sluicegate_protocol::{FILTERS_PATH, FilterList};

use super::Failure;
use super::admin::Admin;
use super::check_config::CheckConfig;
use super::check_store;
use super::client::Client;
use super::exit::Exit;
use super::output::counted;
use super::rollout::{not_in_force, notes, other_rules, present};
use super::stdout::print;
use report::{Report, State, Step};
use request::Asked;

/// How often `--wait` tries.
const EVERY: Duration = Duration::from_secs(1);
/// For how long filters may be behind without it: they take new rules one after the other.
const BEHIND: Duration = Duration::from_secs(3);

/// What `/readyz` says of a store that is down.
const LOST: &str = "the store has not answered";

/// Where sidecars with the policy count, as far as is known.
enum Counts {
    Unknown,
    InMemory,
    /// With the names of those that do.
    InRedis(Vec<String>),
}

impl Counts {
    /// That the sidecar with this list counts elsewhere.
    fn elsewhere(&self, list: &FilterList) -> Option<&'static str> {
        match self {
            Self::InMemory if !list.in_memory => Some("it counts in Redis, not in `memory`"),
            Self::InRedis(_) if list.in_memory => Some("it counts in its own memory, not in Redis"),
            Self::InRedis(names) if !names.contains(&list.sidecar) => Some(
                "it counts in another Redis, or under another `key_prefix`: the one above does not list it",
            ),
            _ => None,
        }
    }
}

/// Arguments of `check`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate check --policy policy.yaml --url http://127.0.0.1:10000/\n\n\
                  In CI:\n  sluicegate check --policy policy.yaml --envoy envoy.yaml --wait 1m\n\nMore:\n  docs/dev.md#check-it-all"
)]
pub struct Check {
    /// The policy (YAML) that the sidecar has.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// A file that contains the filter's configuration, as for `check-config`. Can be given several times.
    #[arg(long, value_name = "FILE")]
    envoy: Vec<PathBuf>,
    /// Overrides the policy's `store`. Pass a password in the environment variable instead: other users of this machine see
    /// arguments in the process list [env: SLUICEGATE_STORE].
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    asked: Asked,
    /// Try until all is well, for so long at most; 30s if no time is given. A mistake in a file ends it at once.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "30s", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

impl Check {
    pub async fn run(self) -> Result<(), Failure> {
        let client = self.admin.client()?;
        let (started, mut again) = (Instant::now(), false);
        loop {
            let report = self.walk(&client, again).await?;
            let failure = report.failure();
            again |= matches!(failure, Some((Step::Request, _)));
            let patience = match &failure {
                Some((_, why)) if matches!(why.exit, Exit::Usage | Exit::NotPermitted) => None,
                Some((Step::Filter, _)) => self.wait.or(Some(BEHIND)),
                Some(_) => self.wait,
                None => None,
            };
            if started.elapsed() >= patience.unwrap_or_default() {
                print(&report.text())?;
                return failure.map_or(Ok(()), |(_, why)| Err(why));
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// `again`: the request was sent before, and failed.
    async fn walk(&self, client: &Client, again: bool) -> Result<Report, Failure> {
        let mut report = Report::default();
        let policy = self.policy(&mut report)?;
        let mut counts = Counts::Unknown;
        match &policy {
            Some(policy) => counts = self.store(policy, &mut report).await,
            None => report.skip(Step::Store, "the policy, which names it, has errors"),
        }
        let is_of_jobs = |policy: &Policy| policy.rules.told().is_none();
        match sidecar(client, policy.as_ref(), &counts, &mut report).await {
            // They ask the sidecar themselves.
            Ok(_) if policy.as_ref().is_some_and(is_of_jobs) => {
                report.skip(Step::Filter, "the policy has no rules")
            }
            Ok(list) => filters(&list, &mut report),
            Err(why) => {
                report.fail(Step::Sidecar, &why);
                report.skip(Step::Filter, "the sidecar, which knows them, is not there");
            }
        }
        self.asked
            .ask(client, &self.policy, again, &mut report)
            .await;
        Ok(report)
    }

    /// The policy, if it is valid. What is wrong with Envoy's files is the filter's.
    fn policy(&self, report: &mut Report) -> Result<Option<Policy>, Failure> {
        let found = CheckConfig::of(&self.policy, &self.envoy).report()?;
        let file = self.policy.display().to_string();
        for one in &found.findings {
            let step = match one.file == file {
                true => Step::Policy,
                false => Step::Filter,
            };
            report.finding(step, one);
        }
        match Policy::load(&self.policy) {
            Ok(policy) => {
                let limits = counted(policy.limits().count(), "limit");
                let rules = policy.rules.told().unwrap_or_else(|| "none".to_owned());
                let text = format!("{file}: a sidecar takes it; {limits}, rules {rules}");
                report.well(Step::Policy, text);
                Ok(Some(policy))
            }
            // Told above, unless the file has changed since.
            Err(_) if report.failure().is_some() => Ok(None),
            Err(why) => Err(Failure::usage(why)),
        }
    }

    async fn store(&self, policy: &Policy, report: &mut Report) -> Counts {
        let found = match check_store::found(policy, self.store.as_deref()).await {
            Ok(found) => found,
            Err(why) => {
                report.fail(Step::Store, &why);
                return Counts::Unknown;
            }
        };
        let Some(found) = found else {
            let text = "`memory`: each sidecar counts for itself, and forgets at a restart";
            report.well(Step::Store, text);
            return Counts::InMemory;
        };
        for one in found.findings.iter().filter(|one| one.state != "ok") {
            let state = match one.state.as_str() {
                "warning" => State::Warning,
                _ => State::Error,
            };
            let remedy = one.remedy.as_deref().unwrap_or_default();
            let text = format!("{}: {}: {}; {remedy}", one.at, one.check, one.text);
            report.add(Step::Store, state, text, section(&one.check));
        }
        let checks = counted(found.findings.len(), "check");
        let text = format!("sidecars can count there; {checks} of Redis");
        match report.well(Step::Store, text) {
            true => Counts::InRedis(found.sidecars),
            false => Counts::Unknown,
        }
    }
}

/// The section on a check of the store.
fn section(check: &str) -> &'static str {
    match check {
        "permissions" => "docs/redis.md#permissions",
        "sentinel" | "primary" => "docs/redis.md#sentinel",
        "slots" => "docs/redis.md#a-redis-cluster",
        "sharding" => "docs/redis.md#behind-a-proxy",
        "fleets" => "docs/redis.md#several-fleets-on-one-redis",
        "version" => "docs/redis.md#versions",
        "eviction" => "docs/runbook.md#sluicegatestoreevicts",
        "round trip" => "docs/runbook.md#sluicegatestoreslow",
        "clock" => "docs/runbook.md#sluicegatestoreclock",
        _ => "docs/redis.md#the-address",
    }
}

/// Asks the sidecar how it is, and for its filters. It has to have this policy, and to count in this store.
async fn sidecar(
    client: &Client,
    policy: Option<&Policy>,
    counts: &Counts,
    report: &mut Report,
) -> Result<FilterList, Failure> {
    let ready = client.text(READYZ_PATH).await?;
    let list: FilterList = client.get(FILTERS_PATH).await?;
    let mut lines = ready.lines();
    let first = lines.next().unwrap_or_default();
    let lost = Some(first).filter(|line| line.contains(LOST));
    for line in lost.into_iter().chain(lines) {
        report.add(Step::Sidecar, State::Error, line, section_of(line));
    }
    let page = "docs/troubleshooting.md#a-change-did-not-arrive";
    if let Some(why) = policy.and_then(|policy| other_policy(&list, policy)) {
        report.add(Step::Sidecar, State::Error, why, page);
    }
    if let Some(why) = counts.elsewhere(&list).filter(|_| lost.is_none()) {
        report.add(Step::Sidecar, State::Error, why, page);
    }
    report.well(Step::Sidecar, first);
    Ok(list)
}

/// That the sidecar decides by another policy than this one.
fn other_policy(list: &FilterList, policy: &Policy) -> Option<String> {
    let rules = policy.rules.told();
    other_rules(list, rules.as_deref()).or_else(|| {
        (digest(&policy.decides_by()) != list.policy).then(|| {
            "the sidecar's limits, tiers or consumers are not those of the file, or it is of another version".to_owned()
        })
    })
}

/// The section on a line of `/readyz`.
fn section_of(line: &str) -> &'static str {
    let says = |words| line.contains(words);
    match line {
        _ if says(LOST) || says("by now: ") => "docs/runbook.md#sluicegatestorefailing",
        _ if says("the policy file is refused") => "docs/runbook.md#sluicegatepolicyrefused",
        _ if says("the last good policy") => "docs/runbook.md#sluicegatelastgoodpolicy",
        _ if says("requests ask for limits") => "docs/runbook.md#sluicegateunknownlimit",
        _ => "docs/reliability.md#the-sidecar",
    }
}

fn filters(list: &FilterList, report: &mut Report) {
    for filter in present(list) {
        for (note, page) in notes(filter) {
            let of = match filter.node.as_str() {
                "" => String::new(),
                node => format!(" of Envoy `{node}`"),
            };
            let text = format!("filter {}{of}: {note}", filter.vm);
            report.add(Step::Filter, State::Error, text, page);
        }
    }
    if let Some(why) = not_in_force(list) {
        let page = match present(list).next() {
            None => "docs/runbook.md#sluicegatewithoutrules",
            Some(_) => "docs/runbook.md#sluicegatefiltersbehind",
        };
        report.add(Step::Filter, State::Error, why, page);
    }
    let count = counted(present(list).count(), "filter");
    let text = format!("rules {} are in force in {count}", list.rules);
    report.well(Step::Filter, text);
}
