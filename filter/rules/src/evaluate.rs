//! Evaluates the rules for a request: which of them match, and which checks the sidecar is asked for.

use std::borrow::Cow;
use std::rc::Rc;

use sluicegate_protocol::MAX_CHECKS;

use crate::config::terms::{WhenMissing, WhenUnavailable};
use crate::edges::stripped;
use crate::key::{Hasher, Key, MISSING, SHADOW};
use crate::lookup::Lookup;
use crate::match_result::MatchResult;
use crate::matching_readings::{MatchingReadings, Stopped};
use crate::question::{Question, ResolvedCheck, Shadow};
use crate::reply::{NoValue, Reply};
use crate::request::Request;
use crate::request_view::{Reading, RequestView};
use crate::rule::{CheckRule, LimitName, Rule, RuleSet};
use crate::settings::Settings;
use crate::settle::Reserved;
use crate::stats::Counters;
use crate::trace;
use crate::verdict_error::VerdictError;

/// In place of an address that is missing too.
const NO_ADDRESS: &[u8] = b"unknown";

/// The result of evaluating the rules for a request.
#[derive(Clone, Debug)]
pub enum Evaluation {
    /// No rule has a check for the request.
    Pass,
    /// A rule refuses the request without asking the sidecar.
    Refuse(Reply),
    /// Ask the sidecar this question.
    Ask(Question),
    /// The request has more checks than a decision allows: conclude without asking the sidecar.
    NoVerdict(Question, VerdictError),
}

/// One possible reading of a request's target, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedReading {
    /// The path; `None` if it has too many readings.
    pub path: Option<Vec<u8>>,
    /// The query parameters that any rule reads.
    pub parameters: Vec<(String, Vec<u8>)>,
    /// Indices of the rules that match, regardless of `stop`.
    pub matching: Vec<usize>,
}

impl RuleSet {
    /// Matches a request against all rules and derives its keys.
    pub fn evaluate(self: &Rc<Self>, settings: &Settings, request: &dyn Request) -> Evaluation {
        let count = |counter| self.counters.count(counter);
        let view = RequestView::new(request, &self.view_options);
        let mut question = Question {
            rules: Rc::clone(self),
            checks: Vec::new(),
            shadows: Vec::new(),
            when_unavailable: WhenUnavailable::Allow,
            grpc: false,
            traceparent: None,
        };
        // A rule stops a later one only in the readings in which both match. So whichever reading is the upstream's,
        // the rules that apply in it are evaluated.
        let mut stopped = Stopped::default();
        for (index, rule) in self.rules.iter().enumerate() {
            let readings = match rule.matching_readings(&view, &mut stopped) {
                Ok(readings) if readings.first.is_some() => readings,
                Ok(_) => continue,
                // A shadow rule that cannot be evaluated is skipped.
                Err(_) if rule.shadow => continue,
                Err(too_long) => {
                    count(Counters::REFUSED_TOO_LONG);
                    let reply = Reply::too_long(&rule.name, too_long, view.headers().is_grpc());
                    return Evaluation::Refuse(reply);
                }
            };
            let mut checks = match rule.derive(index, &settings.hasher, &view, &readings) {
                Ok(checks) => checks,
                Err((_, limit)) if rule.shadow => {
                    count(self.counters.shadow_denied(index, limit));
                    continue;
                }
                Err((why, limit)) => {
                    count(why.counter());
                    let limit = self.limit_name(index, limit);
                    let reply = Reply::no_value(why, &rule.name, limit, view.headers().is_grpc());
                    return Evaluation::Refuse(reply);
                }
            };
            if !checks.is_empty() {
                count(self.counters.decisions(index));
                if rule.shadow {
                    let rule = index;
                    question.shadows.push(Shadow { rule, checks });
                    continue;
                }
                if rule.when_unavailable == WhenUnavailable::Deny {
                    question.when_unavailable = WhenUnavailable::Deny;
                }
                question.checks.append(&mut checks);
            }
            if stopped.everywhere {
                break;
            }
        }
        if question.checks.is_empty() && question.shadows.is_empty() {
            return Evaluation::Pass;
        }
        count(Counters::DECISIONS);
        question.grpc = view.headers().is_grpc();
        if settings.traces {
            question.traceparent = trace::parent(request.headers());
        }
        if question.checks.len() > MAX_CHECKS {
            // A client may have built a request that matches this many rules.
            question.when_unavailable = WhenUnavailable::Deny;
            let why = self.too_many_checks(&question);
            return Evaluation::NoVerdict(question, why);
        }
        Evaluation::Ask(question)
    }

    fn too_many_checks(&self, question: &Question) -> VerdictError {
        let rules = question.checks.chunk_by(|a, b| a.rule == b.rule);
        let rules = rules.filter_map(|checks| Some(self.rule_name(checks.first()?.rule)));
        VerdictError::TooManyChecks {
            checks: question.checks.len(),
            rules: rules.collect::<Vec<_>>().join("`, `"),
        }
    }

    /// Every reading of a request's target, with the rules that match in it.
    pub fn readings(&self, request: &dyn Request) -> Vec<ExplainedReading> {
        let view = RequestView::new(request, &self.view_options);
        let describe = |reading: Reading<'_, '_>| {
            let parameter = |name: &str| {
                let values = reading.parameter(name);
                let pair = |value: &[u8]| (name.to_owned(), value.to_vec());
                values.map(pair).collect::<Vec<_>>()
            };
            let rules = self.rules.iter().enumerate();
            let matching = rules.filter(|(_, rule)| {
                rule.matcher.matches(reading, &mut Vec::new()) == MatchResult::Yes
            });
            ExplainedReading {
                path: reading.path().map(<[u8]>::to_vec),
                parameters: self
                    .view_options
                    .parameters
                    .iter()
                    .flat_map(parameter)
                    .collect(),
                matching: matching.map(|(index, _)| index).collect(),
            }
        };
        view.readings().map(describe).collect()
    }

    /// The components of keys that a request lacks, as keys name them, with the rule's index; for `explain`.
    pub fn missing(&self, request: &dyn Request) -> Vec<(usize, &str)> {
        let view = RequestView::new(request, &self.view_options);
        let mut missing = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let Ok(readings) = rule.matching_readings(&view, &mut Stopped::default()) else {
                continue;
            };
            let matches = readings.first.is_some();
            let components = rule.checks.iter().flat_map(|check| &check.key);
            let lacks = components.filter(|component| {
                matches && matches!(readings.find(component, &view), Lookup::Missing)
            });
            missing.extend(lacks.map(|component| (index, component.name.as_str())));
        }
        missing
    }
}

impl NoValue {
    const fn counter(self) -> usize {
        match self {
            Self::Missing => Counters::REFUSED_MISSING,
            Self::Ambiguous => Counters::REFUSED_AMBIGUOUS,
            Self::Unreadable => Counters::REFUSED_UNREADABLE,
        }
    }
}

impl Rule {
    /// Its checks in these readings; for a check that cannot be made, why, and the index of its limit.
    fn derive<'a>(
        &'a self,
        index: usize,
        hasher: &Hasher,
        view: &'a RequestView<'_>,
        readings: &'a MatchingReadings<'a, '_>,
    ) -> Result<Vec<ResolvedCheck>, (NoValue, usize)> {
        let mut checks = Vec::new();
        for (number, check) in self.checks.iter().enumerate() {
            let mut key = Key::new(hasher);
            if self.shadow {
                // Its own key, so that it does not consume units of enforced rules with the same limit.
                key.plain(&[SHADOW], self.name.as_bytes());
            }
            if let Some(check) = check.derive((index, number), key, view, readings)? {
                checks.push(check);
            }
        }
        Ok(checks)
    }
}

impl CheckRule {
    /// `None` if a component is missing and the check is skipped.
    fn derive<'a>(
        &'a self,
        (rule, check): (usize, usize),
        mut key: Key<'_>,
        view: &'a RequestView<'_>,
        readings: &'a MatchingReadings<'a, '_>,
    ) -> Result<Option<ResolvedCheck>, (NoValue, usize)> {
        let limit = self.limit.choose(view, readings)?;
        for component in &self.key {
            match readings.find(component, view) {
                Lookup::Value(kind, value) => {
                    component.add(&mut key, kind, &value);
                    // The sidecar knows whether it is a consumer's, and uses only one of the two.
                    if !self.consumers {
                        continue;
                    }
                }
                Lookup::Ambiguous => return Err((NoValue::Ambiguous, limit)),
                Lookup::Unreadable => return Err((NoValue::Unreadable, limit)),
                Lookup::Missing => {}
            }
            let instead = match &self.when_missing {
                WhenMissing::Skip => return Ok(None),
                WhenMissing::Deny => return Err((NoValue::Missing, limit)),
                WhenMissing::Use(constant) => Cow::Borrowed(constant.as_bytes()),
                WhenMissing::Address(address) => match address.find(view.request) {
                    Lookup::Value(_, address) => address,
                    Lookup::Missing => Cow::Borrowed(NO_ADDRESS),
                    _ => return Err((NoValue::Unreadable, limit)),
                },
            };
            // Under a name that no source produces, so that no client can send the value itself.
            key.plain(&[MISSING, &component.name], &instead);
        }
        if self.cost.is_ambiguous(view) {
            return Err((NoValue::Ambiguous, limit));
        }
        Ok(Some(ResolvedCheck {
            rule,
            limit,
            key: key.finish(),
            cost: self
                .cost
                .of(view, readings.iter().map(|(reading, _)| *reading)),
            quota: self
                .quota
                .as_ref()
                .and_then(|claim| claim.units(view.request)),
            reserved: self.settle.as_ref().map(|settle| Reserved {
                check,
                before: settle.before(&|path| view.request.property(path)),
            }),
        }))
    }
}

impl LimitName {
    fn choose<'a>(
        &'a self,
        view: &'a RequestView<'_>,
        readings: &'a MatchingReadings<'a, '_>,
    ) -> Result<usize, (NoValue, usize)> {
        match self {
            Self::Fixed(limit) => Ok(*limit),
            Self::Tiers { by, map, default } => match readings.find(by, view) {
                Lookup::Ambiguous => Err((NoValue::Ambiguous, *default)),
                Lookup::Unreadable => Err((NoValue::Unreadable, *default)),
                Lookup::Missing => Ok(*default),
                Lookup::Value(_, value) => Ok(map
                    .iter()
                    .find(|(tier, _)| stripped(tier.as_bytes()) == stripped(&value))
                    .map_or(*default, |(_, limit)| *limit)),
            },
        }
    }
}
