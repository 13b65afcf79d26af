//! A filter beside a sidecar: the real rules, cached denials and leases; what `filter/src` does with Envoy is done here with a call.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::decide::Service;
use sluicegate_certificates::CallTimes;
use sluicegate_protocol::{LEASES_HEADER, PartReport, Verdict, read_decisions};
use sluicegate_rules::{
    DenialCache, LeaseReport, Leases, Question, ResolvedCheck, RuleSet, Taken, WhenUnavailable,
    parse, question_body, read_answer,
};
use tokio::time::timeout;

use super::script::Check;

/// How long a request waits for its verdict.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How long a renewal of leases does.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);

/// A filter.
pub struct Filter {
    rules: Rc<RuleSet>,
    denials: RefCell<DenialCache>,
    leases: RefCell<Leases>,
    began: Instant,
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Admitted,
    /// With Retry-After.
    Denied {
        retry_ms: u64,
    },
    /// No verdict: it may have been consumed or not.
    Unknown,
    /// The decision is not valid: nothing is consumed.
    Refused,
}

/// By whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Sidecar,
    Cache,
    Lease,
}

impl From<&Verdict<'_>> for Said {
    fn from(verdict: &Verdict<'_>) -> Self {
        match verdict {
            Verdict::Admitted(_) => Self::Admitted,
            Verdict::Denied(status) => Self::Denied {
                retry_ms: status.retry_after_ms,
            },
            Verdict::Unavailable { .. } => Self::Unknown,
            Verdict::Error(_) => Self::Refused,
        }
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Filter {
    /// For this number of limits.
    pub fn new(limits: usize) -> Self {
        let check =
            |number| serde_json::json!({"limit": format!("l{number}"), "key": [{"constant": "k"}]});
        let rules = serde_json::json!({
            "version": 1,
            "sidecar": {"cluster": "s"},
            "rules": [{"name": "r", "when_unavailable": "deny", "checks": (0..limits).map(check).collect::<Vec<_>>()}],
        });
        let (_, rules) = parse(rules.to_string().as_bytes()).expect("a valid configuration");
        Self {
            rules: Rc::new(rules),
            denials: RefCell::default(),
            leases: RefCell::default(),
            began: Instant::now(),
        }
    }

    fn now_us(&self) -> u64 {
        us(self.began.elapsed())
    }

    /// Asks for these checks.
    pub async fn ask(&self, service: &Arc<Service>, checks: &[Check]) -> (Said, By) {
        let resolved = |check: &Check| ResolvedCheck {
            rule: 0,
            limit: check.limit,
            key: format!("k{}", check.key),
            cost: check.cost,
            quota: check.quota,
        };
        let question = Question {
            rules: Rc::clone(&self.rules),
            checks: checks.iter().map(resolved).collect(),
            shadows: Vec::new(),
            when_unavailable: WhenUnavailable::Deny,
            grpc: false,
            traceparent: None,
        };
        let now_us = self.now_us();
        let cached = self.denials.borrow_mut().covering(&question, now_us);
        if let Some(verdict) = cached.as_ref().and_then(|verdicts| verdicts.first()) {
            return (verdict.into(), By::Cache);
        }
        let taken = self
            .leases
            .borrow_mut()
            .take(&question, now_us, us(TIMEOUT));
        if taken.covers_all(&question) {
            self.leases.borrow_mut().spend(&question, &taken);
            return (Said::Admitted, By::Lease);
        }
        let leases = self.leases.borrow_mut().report(now_us, false);
        let said = self
            .call(service, Some((&question, &taken)), leases, TIMEOUT)
            .await;
        if !taken.is_empty() {
            let mut leases = self.leases.borrow_mut();
            let live = leases.is_live(&question, &taken, self.now_us());
            if live && said == Said::Admitted {
                leases.spend(&question, &taken);
            } else {
                leases.put_back(&question, &taken);
                if said == Said::Admitted {
                    // The sidecar's part of it is taken, and the request does not pass.
                    return (Said::Unknown, By::Sidecar);
                }
            }
        }
        (said, By::Sidecar)
    }

    /// One callout, with a question or without.
    async fn call(
        &self,
        service: &Arc<Service>,
        asked: Option<(&Question, &Taken)>,
        leases: LeaseReport,
        within: Duration,
    ) -> Said {
        let sent_us = self.now_us();
        let report = self.denials.borrow_mut().report();
        let body = question_body(asked, &report);
        let spent = PartReport::write_all(&leases.parts);
        let header = |name: &str| (name == LEASES_HEADER).then_some(spent.as_str());
        let answer = async {
            let asked = read_decisions(&body).ok()?;
            serde_json::to_vec(&service.decide(&asked, header).await).ok()
        };
        let answer = timeout(within, answer).await.ok().flatten();
        let times = CallTimes {
            sent_us,
            answered_us: self.now_us(),
        };
        let decisions = asked.map_or(0, |(question, taken)| taken.decisions_to_ask(question));
        let answer = answer
            .as_ref()
            .and_then(|body| read_answer(body, decisions).ok());
        let Some(answer) = answer else {
            self.leases.borrow_mut().failed(leases, times.answered_us);
            self.denials.borrow_mut().put_back(report);
            return Said::Unknown;
        };
        let version = answer.version();
        self.leases
            .borrow_mut()
            .answered(leases, version, &answer.leases, times);
        let mut denials = self.denials.borrow_mut();
        let most_ms = denials.answered(version, None, times);
        let Some((question, taken)) = asked else {
            return Said::Unknown;
        };
        let verdicts = taken.verdicts(question, &answer.verdicts);
        denials.learn(question, most_ms, &verdicts, times);
        verdicts.first().map_or(Said::Unknown, Said::from)
    }

    /// What its timer does, for ever.
    pub async fn run(&self, service: &Arc<Service>) {
        loop {
            let idle = self.leases.borrow().is_empty();
            tokio::time::sleep(Duration::from_millis(if idle { 500 } else { 50 })).await;
            let now_us = self.now_us();
            let renews = self.leases.borrow().wants_renewal();
            let has_report = self.leases.borrow_mut().has_report(now_us);
            if renews {
                let leases = self.leases.borrow_mut().report(now_us, true);
                if leases.asks() {
                    self.call(service, None, leases, RENEWAL_TIMEOUT).await;
                } else {
                    self.leases.borrow_mut().failed(leases, now_us);
                }
            } else if has_report {
                let leases = self.leases.borrow_mut().report(now_us, false);
                self.call(service, None, leases, TIMEOUT).await;
            }
        }
    }
}
