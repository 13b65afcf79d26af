//! `sluicegate rollout`: whether every filter has the rules of the policy in force.

use std::time::{Duration, Instant};

use sluicegate_protocol::{FILTERS_PATH, FilterList, FilterState, RulesState};

use super::Failure;
use super::admin::AdminPort;
use super::client::Patience;
use super::exit::Exit;
use super::output::Output;
use super::stdout::line;

/// How often the sidecar is asked.
const EVERY: Duration = Duration::from_millis(200);

/// Arguments of `rollout`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate rollout --wait --timeout 30s\n\n\
                  In CI:\n  sluicegate rollout --wait --rules a41c09d2e7f3\n\nMore:\n  docs/rules.md#who-has-which-rules")]
pub struct Rollout {
    #[command(flatten)]
    admin: AdminPort,
    /// Wait until all filters have the rules.
    #[arg(long)]
    wait: bool,
    /// How long to wait, also for an answer.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// The digest that must be in force. `check-config` prints that of a file. Without it, whichever the sidecar has.
    #[arg(long, value_name = "DIGEST")]
    rules: Option<String>,
    /// Output format; `json` prints the sidecar's answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Rollout {
    pub async fn run(self) -> Result<(), Failure> {
        let timeout = self.timeout;
        let client = self.admin.client(&Patience { timeout })?;
        let until = Instant::now() + timeout;
        loop {
            let list: FilterList = client.get(FILTERS_PATH).await?;
            let why = self.missing(&list);
            if why.is_none() || !self.wait || Instant::now() >= until {
                self.output.print(&list, text)?;
                return why.map_or(Ok(()), |why| Err(Failure::new(Exit::System, why)));
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Why the rollout is not complete, if it is not.
    fn missing(&self, list: &FilterList) -> Option<String> {
        if let Some(why) = &list.refusal {
            return Some(format!("the sidecar refuses its policy file: {why}"));
        }
        other_rules(list, self.rules.as_deref()).or_else(|| not_in_force(list))
    }
}

/// That the sidecar has other rules than those with this digest.
pub fn other_rules(list: &FilterList, wanted: Option<&str>) -> Option<String> {
    let wanted = wanted.filter(|wanted| *wanted != list.rules)?;
    Some(format!(
        "the sidecar's rules are {}, not {wanted}: it has not read the new policy, or refused it",
        list.rules
    ))
}

/// Why the sidecar's rules are not known to be in force in all filters.
pub fn not_in_force(list: &FilterList) -> Option<String> {
    if list.more {
        return Some("there are more filters than the sidecar lists".to_owned());
    }
    let filters = present(list).count();
    if filters == 0 {
        return Some("no filter has asked this sidecar for rules lately".to_owned());
    }
    let others = present(list).filter(|filter| filter.state != RulesState::InForce);
    let others = others.count();
    (others > 0).then(|| format!("{others} of {filters} filters have other rules"))
}

/// The filters that have not ended with their Envoy, which are known for a minute.
pub fn present(list: &FilterList) -> impl Iterator<Item = &FilterState> {
    let filters = list.filters.iter();
    filters.filter(|filter| filter.state != RulesState::Gone)
}

/// What is to be known of a filter besides, with the page's section on it.
pub fn notes(filter: &FilterState) -> Vec<(String, &'static str)> {
    let mut notes = Vec::new();
    if filter.other_pepper {
        let note = "another pepper than the policy's consumers".to_owned();
        notes.push((note, "docs/runbook.md#sluicegateotherpepper"));
    }
    if let Some(sidecar) = &filter.held_by {
        let digest = filter.digest.as_deref().unwrap_or_default();
        let note = format!("waits for sidecar {sidecar}, which has {digest} in force");
        notes.push((note, "docs/runbook.md#sluicegateholdsfiltersback"));
    }
    if let Some((refused, why)) = filter.refused.as_ref().zip(filter.why.as_ref()) {
        let note = format!("refused {refused}: {why}");
        notes.push((note, "docs/runbook.md#sluicegaterulesrefused"));
    }
    notes
}

fn text(list: &FilterList) -> String {
    let mut page = format!("sidecar {}, rules {}\n", list.sidecar, list.rules);
    if let Some(why) = &list.refusal {
        line!(page, "the policy file is refused: {why}");
    }
    line!(
        page,
        "{:<24}{:<10}{:<14}{:<10}{:>8}",
        "node",
        "filter",
        "digest",
        "state",
        "since"
    );
    for filter in &list.filters {
        let digest = filter.digest.as_deref().unwrap_or("-");
        let vm = filter.vm.get(..8).unwrap_or(&filter.vm);
        let node = Some(filter.node.as_str()).filter(|node| !node.is_empty());
        let (node, state) = (node.unwrap_or("-"), filter.state.name());
        let since = filter.since_seconds;
        line!(
            page,
            "{node:<24}{vm:<10}{digest:<14}{state:<10}{since:>6} s"
        );
        for (note, _) in notes(filter) {
            line!(page, "    {note}");
        }
    }
    page
}
