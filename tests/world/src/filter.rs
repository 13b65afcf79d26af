//! A filter beside a sidecar, or in front of several: the real rules, cached denials and leases, and in front of several the real
//! choice of which rules to take. What `filter/src` does with Envoy is done here with a call.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluicegate::clock;
use sluicegate::decide::Service;
use sluicegate_certificates::CallTimes;
use sluicegate_history::{By, Said};
use sluicegate_protocol::{
    Code, LEASES_HEADER, PartReport, RULES_WAIT_S, RulesReport, UNKNOWN_HEADER, Verdict,
    read_decisions,
};
use sluicegate_rules::{
    Document, LeaseReport, Question, ResolvedCheck, RuleSet, Taken, VerdictError, WhenUnavailable,
    config, question_body, read_answer,
};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::document::document;
use super::host;
use super::plugin::Plugin;
use super::rule_updates::RuleUpdates;
use super::script::{CONSUMERS, Check, SETS, hashed};

/// How long a request waits for its verdict.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How long a renewal of leases does.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a compilation may take at once; here no time passes meanwhile.
const COMPILE_FOR_US: u64 = 1_000;
/// How often a filter announces itself, and how often while sidecars have other rules.
const ANNOUNCE_EVERY_US: [u64; 2] = [15_000_000, 500_000];

/// The sidecars that a filter asks in turn; none in the place of one that is down.
#[derive(Default)]
pub struct Sidecars {
    all: RefCell<Vec<Option<Arc<Service>>>>,
    next: Cell<usize>,
}

/// A sidecar with its number.
type Numbered = (usize, Arc<Service>);

impl Sidecars {
    /// A sidecar has come or gone.
    pub fn set(&self, number: usize, service: Option<Arc<Service>>) {
        let mut all = self.all.borrow_mut();
        let least = all.len().max(number + 1);
        all.resize(least, None);
        all[number] = service;
    }

    fn next(&self) -> Option<Numbered> {
        let all = self.all.borrow();
        let mut order = (0..all.len()).map(|further| (self.next.get() + further) % all.len());
        let next = order.find_map(|number| Some((number, Arc::clone(all[number].as_ref()?))))?;
        self.next.set(next.0 + 1);
        Some(next)
    }

    fn has(&self, (number, service): &Numbered) -> bool {
        let all = self.all.borrow();
        let still = all[*number].as_ref();
        still.is_some_and(|still| Arc::ptr_eq(still, service))
    }
}

/// A filter.
pub struct Filter {
    plugin: Plugin,
    /// It takes rules from sidecars.
    follows: bool,
    updates: RuleUpdates,
    pub sidecars: Sidecars,
    /// It cannot use rules that it does not have.
    pub refuses: Cell<bool>,
}

/// What became of a request.
pub struct Asked {
    /// The sidecar that was asked, or would have been.
    pub sidecar: usize,
    /// What its rules ask for.
    pub checks: Vec<Check>,
    pub said: Said,
    pub by: By,
    /// The checks that had no part in the verdict.
    pub unknown: Vec<usize>,
}

/// A verdict as the record has it.
pub fn said(verdict: &Verdict<'_>) -> Said {
    match verdict {
        Verdict::Admitted(_) => Said::Admitted,
        Verdict::Denied(status) => Said::Denied {
            retry_ms: Some(status.retry_after_ms),
        },
        Verdict::Unavailable { .. } => Said::Unknown,
        Verdict::Error(_) => Said::Refused,
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A set with a rule for each of so many limits.
fn own_rules(limits: usize) -> Vec<Rc<RuleSet>> {
    let rule = |number| {
        let check = json!({"limit": format!("l{number}"), "key": [{"constant": "k"}]});
        json!({"name": format!("s0r{number}"), "when_unavailable": "deny", "checks": [check]})
    };
    let rules: Vec<_> = (0..limits).map(rule).collect();
    let text = document(json!({"set": SETS[0]}), &rules);
    let mut document = Document::new(text.into()).expect("a document");
    while document.compile_line().expect("a valid line") {}
    document.finish(&[SETS[0].to_owned()]).expect("the set")
}

impl Filter {
    /// One that has the rules of sidecars, in sets by route or not, or else rules of its own for this number of limits.
    pub fn new(follows: bool, by_route: bool, limits: usize) -> Self {
        let mut configuration = json!({"version": 2, "sidecar": {"cluster": "s"}});
        if by_route {
            configuration["rule_sets"] =
                json!({"default": SETS[0], "others": [SETS[1]], "by": "route_name"});
        }
        let (settings, pushed) = config::settings(configuration).expect("a configuration");
        let plugin = Plugin::new(settings, pushed, String::new());
        if !follows {
            plugin.replace_rules(own_rules(limits));
        }
        Self {
            plugin,
            follows,
            updates: RuleUpdates::default(),
            sidecars: Sidecars::default(),
            refuses: Cell::new(false),
        }
    }

    /// Asks for these checks, by the names that its rules have for them, for a route of this set. `None`: there are no rules yet, or they ask for nothing.
    pub async fn ask(&self, set: usize, checks: &[Check]) -> Option<Asked> {
        host::ROUTE.set(SETS[set]);
        let rules = self.plugin.rules_for(&host::CurrentRequest)?;
        let resolved: Vec<_> = checks
            .iter()
            .filter_map(|check| resolve(&rules, set, check))
            .collect();
        if resolved.is_empty() {
            return None;
        }
        let next = self.sidecars.next()?;
        let (resolved, checks) = resolved.into_iter().unzip();
        let question = Question {
            rules,
            checks: resolved,
            shadows: Vec::new(),
            when_unavailable: WhenUnavailable::Deny,
            grpc: false,
            traceparent: None,
        };
        let sidecar = next.0;
        let (said, by, unknown) = self.decide(next, &question).await;
        Some(Asked {
            sidecar,
            checks,
            said,
            by,
            unknown,
        })
    }

    async fn decide(&self, sidecar: Numbered, question: &Question) -> (Said, By, Vec<usize>) {
        let plugin = &self.plugin;
        let now_us = host::monotonic_us();
        let cached = plugin.denials.borrow_mut().covering(question, now_us);
        if let Some(verdict) = cached.as_ref().and_then(|verdicts| verdicts.first()) {
            return (said(verdict), By::Cache, Vec::new());
        }
        let taken = plugin
            .leases
            .borrow_mut()
            .take(question, now_us, us(TIMEOUT));
        if taken.covers_all(question) {
            plugin.spend(question, &taken);
            return (Said::Admitted, By::Lease, Vec::new());
        }
        let leases = plugin.leases.borrow_mut().report(now_us, false);
        let asked = Some((question, &taken));
        let (said, unknown) = self.call(sidecar, asked, leases, TIMEOUT).await;
        if !taken.is_empty() {
            let mut leases = plugin.leases.borrow_mut();
            let live = leases.is_live(question, &taken, host::monotonic_us());
            if live && said == Said::Admitted {
                leases.spend(question, &taken);
            } else {
                leases.put_back(question, &taken);
                if said == Said::Admitted {
                    // The sidecar's part of it is taken, and the request does not pass.
                    return (Said::Unknown, By::Sidecar, unknown);
                }
            }
        }
        (said, By::Sidecar, unknown)
    }

    /// One callout, with a question or without.
    async fn call(
        &self,
        sidecar: Numbered,
        asked: Option<(&Question, &Taken)>,
        leases: LeaseReport,
        within: Duration,
    ) -> (Said, Vec<usize>) {
        let plugin = &self.plugin;
        let sent_us = host::monotonic_us();
        let report = plugin.denials.borrow_mut().report();
        let body = question_body(asked, &report);
        let spent = PartReport::write_all(&leases.parts);
        let header = |name: &str| match name {
            LEASES_HEADER => Some(spent.as_str()),
            UNKNOWN_HEADER => Some("named"),
            _ => None,
        };
        let told = self.updates.is_untold().then(|| {
            self.announce(&sidecar.1, sent_us);
            self.updates.revision()
        });
        let answer = async {
            let asked = read_decisions(&body).ok()?;
            serde_json::to_vec(&sidecar.1.decide(&asked, header).await).ok()
        };
        let answer = timeout(within, answer).await.ok().flatten();
        let times = CallTimes {
            sent_us,
            answered_us: host::monotonic_us(),
        };
        let decisions = asked.map_or(0, |(question, taken)| taken.decisions_to_ask(question));
        let answer = answer
            .as_ref()
            .and_then(|body| read_answer(body, decisions).ok());
        let Some(answer) = answer else {
            plugin.leases.borrow_mut().failed(leases, times.answered_us);
            plugin.denials.borrow_mut().put_back(report);
            return (Said::Unknown, Vec::new());
        };
        let version = answer.version();
        plugin
            .leases
            .borrow_mut()
            .answered(leases, version, &answer.leases, times);
        let mut denials = plugin.denials.borrow_mut();
        let most_ms = denials.answered(version, answer.limits.as_deref(), times);
        if self.follows {
            self.updates.named(&answer, told, times.answered_us);
        }
        let Some((question, taken)) = asked else {
            return (Said::Unknown, Vec::new());
        };
        let verdicts = taken.verdicts(question, &answer.verdicts);
        denials.learn(question, most_ms, &verdicts, times);
        let unknown = match verdicts.first() {
            Some(Verdict::Admitted(status)) => status.unknown.clone(),
            Some(Verdict::Error(problem)) if problem.code == Code::UnknownLimit => {
                (0..question.checks.len()).collect()
            }
            _ => Vec::new(),
        };
        (verdicts.first().map_or(Said::Unknown, said), unknown)
    }

    /// What its timer does, for ever.
    pub async fn run(self: Rc<Self>) {
        let mut announced_us = 0;
        loop {
            self.follow();
            let idle = self.plugin.leases.borrow().is_empty();
            sleep(Duration::from_millis(if idle { 500 } else { 50 })).await;
            let Some(next) = self.sidecars.next() else {
                continue;
            };
            let now_us = host::monotonic_us();
            let renews = self.plugin.leases.borrow().wants_renewal();
            let mut has_report = self.plugin.leases.borrow_mut().has_report(now_us);
            if self.follows
                && now_us - announced_us
                    >= ANNOUNCE_EVERY_US[usize::from(self.updates.reports_often())]
            {
                (announced_us, has_report) = (now_us, true);
                self.announce(&next.1, now_us);
            }
            if renews {
                let leases = self.plugin.leases.borrow_mut().report(now_us, true);
                if leases.asks() {
                    self.call(next, None, leases, RENEWAL_TIMEOUT).await;
                } else {
                    self.plugin.leases.borrow_mut().failed(leases, now_us);
                }
            } else if has_report {
                let leases = self.plugin.leases.borrow_mut().report(now_us, false);
                self.call(next, None, leases, TIMEOUT).await;
            }
        }
    }

    /// Tells a sidecar which rules it has.
    fn announce(&self, sidecar: &Service, now_us: u64) {
        if !self.follows {
            return;
        }
        let report = self.updates.report(&self.plugin, now_us);
        if let Some(report) = RulesReport::read(&report) {
            let at_us = clock::now_us();
            sidecar.filters.hears(&report, "world", at_us, 0);
        }
    }

    /// Puts rules in force that have come, and asks for others.
    fn follow(self: &Rc<Self>) {
        if !self.follows {
            return;
        }
        let now_us = host::monotonic_us();
        self.updates.compile(&self.plugin, now_us, COMPILE_FOR_US);
        if !self.updates.is_due(now_us) {
            return;
        }
        self.updates.request(&self.plugin, now_us);
        let Some((token, report)) = host::take_call() else {
            return;
        };
        let Some(next) = self.sidecars.next() else {
            return self
                .updates
                .answered(&self.plugin, Err(VerdictError::Unreachable), now_us);
        };
        let filter = Rc::clone(self);
        spawn_local(async move {
            let report = RulesReport::read(&report).map(|report| (report, "world"));
            let wait = Duration::from_secs(RULES_WAIT_S + 5);
            let answer = timeout(wait, next.1.rules_for(report)).await;
            sleep(Duration::from_millis(1)).await;
            if !filter.updates.awaits(token) {
                return;
            }
            let mut body = answer.map_err(|_| VerdictError::Timeout);
            if !filter.sidecars.has(&next) {
                body = Err(VerdictError::Unreachable);
            }
            if filter.refuses.get() {
                body = body.map(|text| text.replacen("\"format\":1", "\"format\":9", 1));
            }
            let body = body.map(String::into_bytes);
            filter
                .updates
                .answered(&filter.plugin, body, host::monotonic_us());
            filter.follow();
        });
    }

    /// Whether it should have the rules with this digest, and has others. It does not try again what it has refused.
    pub fn lacks(&self, digest: Option<&str>) -> bool {
        let now_us = host::monotonic_us();
        let report = self.updates.report(&self.plugin, now_us);
        RulesReport::read(&report).is_some_and(|report| {
            let known = [report.in_force.as_deref(), report.refused.as_deref()];
            !known.contains(&digest)
        })
    }
}

/// The check that these rules make in place of one, if any does.
fn resolve(rules: &RuleSet, set: usize, check: &Check) -> Option<(ResolvedCheck, Check)> {
    let name = format!("s{set}r{}", check.limit);
    let rule = (0..rules.count()).find(|rule| rules.rule_name(*rule) == name)?;
    let (limit, key) = match rules.limit_name(rule, 0) {
        "c" => (CONSUMERS, hashed(check.key)),
        name => (
            name.strip_prefix('l')?.parse().ok()?,
            format!("k{}", check.key),
        ),
    };
    let resolved = ResolvedCheck {
        rule,
        limit: 0,
        key,
        cost: check.cost,
        quota: check.quota,
    };
    Some((resolved, Check { limit, ..*check }))
}
