//! Rules, ready to be matched, and what a request has to ask because of them.

use sluicegate_protocol::{MAX_CHECKS, WithoutStore};

use crate::applies::{Applies, Stopped};
use crate::config::Sidecar;
use crate::cost::Cost;
use crate::found::Found;
use crate::key::{Hasher, Key};
use crate::matcher::{Holds, Matcher, TooLong};
use crate::part::{Part, Source};
use crate::reply::{LimitTexts, Reply, ReplyStyle};
use crate::request::Request;
use crate::seen::{self, Reader, Seen};
use crate::stats::Counters;
use crate::trace;
use crate::wire::Unusable;

/// Everything that one plugin configuration says.
#[derive(Debug)]
pub struct Rules {
    /// Where to ask.
    pub sidecar: Sidecar,
    pub(crate) hasher: Hasher,
    pub(crate) reader: Reader,
    pub(crate) rules: Vec<Rule>,
    pub(crate) counters: Counters,
    /// By rule and limit.
    pub(crate) texts: Vec<Vec<LimitTexts>>,
}

/// Which requests, and the checks to make for them.
#[derive(Debug)]
pub(crate) struct Rule {
    pub name: String,
    pub matcher: Matcher,
    pub checks: Vec<CheckRule>,
    /// Every limit that one of its checks may name, each once.
    pub limits: Vec<String>,
    pub when_unavailable: WhenUnavailable,
    /// Where it matches, no rule after it is looked at in the same reading of the path.
    pub stop: bool,
    /// Evaluated and counted, and never denies.
    pub shadow: bool,
    pub reply: ReplyStyle,
}

/// A check to be made for each request that matches.
#[derive(Debug)]
pub(crate) struct CheckRule {
    pub limit: LimitName,
    pub parts: Vec<Part>,
    pub cost: Cost,
    pub when_missing: WhenMissing,
}

/// Which limit, by its place in the rule's list of them.
#[derive(Debug)]
pub(crate) enum LimitName {
    Fixed(usize),
    /// Chosen by what a part of the request says.
    Tiers {
        by: Part,
        map: Vec<(String, usize)>,
        default: usize,
    },
}

/// What to do when a request lacks a part of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhenMissing {
    /// The check is not made.
    Skip,
    /// The request is refused.
    Deny,
    /// The part is this constant.
    Use(String),
}

/// What to answer when no verdict is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnavailable {
    /// Let the request through, unmetered.
    Allow,
    /// 503 with a body that says so.
    Deny,
}

/// One check that a request has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The rule that asks for it, by its place.
    pub rule: usize,
    /// The limit, by its place in the rule's list: [`Rules::limit_name`].
    pub limit: usize,
    /// Whom it is about.
    pub key: String,
    /// Units.
    pub cost: u64,
}

/// A shadow rule's checks: a decision of its own, which never denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The rule, by its place.
    pub rule: usize,
    /// Admitted together or not at all, as if the rule were enforced and alone.
    pub checks: Vec<Check>,
}

/// What a request has to ask the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// All checks of all rules that match and are enforced; admitted together or not at all.
    pub checks: Vec<Check>,
    /// One for each shadow rule that matches.
    pub shadows: Vec<Shadow>,
    /// `Deny` if one of the enforced rules says so.
    pub when_unavailable: WhenUnavailable,
    /// The request speaks gRPC, and so does its answer.
    pub grpc: bool,
    /// The trace that the request belongs to, if it is sampled and the configuration wants it told.
    pub traceparent: Option<String>,
}

/// One way in which an upstream may read a request's target, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The path; `None` when it has too many readings to tell.
    pub path: Option<Vec<u8>>,
    /// The query parameters that some rule looks at.
    pub parameters: Vec<(String, Vec<u8>)>,
    /// The rules that match, by their places, `stop` or not.
    pub matching: Vec<usize>,
}

impl From<WithoutStore> for WhenUnavailable {
    fn from(then: WithoutStore) -> Self {
        match then {
            WithoutStore::Allow => Self::Allow,
            WithoutStore::Deny => Self::Deny,
        }
    }
}

/// What the rules say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// No rule has a check for it.
    Pass,
    /// A rule refuses the request before anybody is asked.
    Refuse(Reply),
    /// Ask this.
    Ask(Question),
    /// It has more checks than a decision may have: nobody is asked, and this is to be concluded without a verdict.
    NoVerdict(Question, Unusable),
}

/// Why a check cannot be made.
enum Obstacle {
    Skip,
    Missing(usize),
    Ambiguous(usize),
    Unreadable(usize),
    TooLong(TooLong),
}

impl Rules {
    /// Matches a request against all rules and derives its keys. `count` is called for each counter that goes up.
    pub fn evaluate(&self, request: &dyn Request, count: &mut dyn FnMut(usize)) -> Evaluation {
        let seen = Seen::new(request, &self.reader);
        let mut question = Question {
            checks: Vec::new(),
            shadows: Vec::new(),
            when_unavailable: WhenUnavailable::Allow,
            grpc: false,
            traceparent: None,
        };
        // The readings in which a rule with `stop` has matched. A rule stops another only where both match: the rules
        // that apply are those that apply in any reading, whichever is the upstream's.
        let mut stopped = Stopped::default();
        for (index, rule) in self.rules.iter().enumerate() {
            let applies = match rule.applies(&seen, &mut stopped) {
                Ok(applies) if applies.first.is_some() => applies,
                Ok(_) => continue,
                // A shadow rule that cannot be evaluated is left out.
                Err(_) if rule.shadow => continue,
                Err(too_long) => {
                    let obstacle = Obstacle::TooLong(too_long);
                    return self.refuse(index, &obstacle, is_grpc(&seen), count);
                }
            };
            let mut checks = Vec::new();
            for check in &rule.checks {
                let mut key = Key::new(&self.hasher);
                if rule.shadow {
                    // A subject of its own, or its takings would be missed by the enforced rules of the same limit.
                    key.plain(&["@shadow"], rule.name.as_bytes());
                }
                match check.derive(index, key, &seen, &applies) {
                    Ok(check) => checks.push(check),
                    Err(Obstacle::Skip) => {}
                    Err(
                        Obstacle::Missing(limit)
                        | Obstacle::Ambiguous(limit)
                        | Obstacle::Unreadable(limit),
                    ) if rule.shadow => {
                        count(self.counters.shadow_denied(index, limit));
                        checks.clear();
                        break;
                    }
                    Err(obstacle) => return self.refuse(index, &obstacle, is_grpc(&seen), count),
                }
            }
            if !checks.is_empty() {
                count(self.counters.decisions(index));
            }
            if rule.shadow {
                if !checks.is_empty() {
                    let shadow = Shadow {
                        rule: index,
                        checks,
                    };
                    question.shadows.push(shadow);
                }
                continue;
            }
            if !checks.is_empty() && rule.when_unavailable == WhenUnavailable::Deny {
                question.when_unavailable = WhenUnavailable::Deny;
            }
            question.checks.append(&mut checks);
            if stopped.everywhere {
                break;
            }
        }
        if question.checks.is_empty() && question.shadows.is_empty() {
            return Evaluation::Pass;
        }
        count(Counters::DECISIONS);
        question.grpc = is_grpc(&seen);
        if self.sidecar.traces {
            question.traceparent = trace::parent(request.headers());
        }
        if question.checks.len() > MAX_CHECKS {
            let why = self.too_many_checks(&question);
            return Evaluation::NoVerdict(question, why);
        }
        Evaluation::Ask(question)
    }

    fn refuse(
        &self,
        rule: usize,
        obstacle: &Obstacle,
        grpc: bool,
        count: &mut dyn FnMut(usize),
    ) -> Evaluation {
        let reply = match obstacle {
            Obstacle::Ambiguous(limit) => {
                count(Counters::REFUSED_AMBIGUOUS);
                Reply::ambiguous_part(self.rule_name(rule), self.limit_name(rule, *limit), grpc)
            }
            Obstacle::Missing(limit) => {
                count(Counters::REFUSED_MISSING);
                Reply::missing_part(self.rule_name(rule), self.limit_name(rule, *limit), grpc)
            }
            Obstacle::Unreadable(limit) => {
                count(Counters::REFUSED_UNREADABLE);
                Reply::unreadable_part(self.rule_name(rule), self.limit_name(rule, *limit), grpc)
            }
            Obstacle::TooLong(what) => {
                count(Counters::REFUSED_TOO_LONG);
                Reply::too_long(self.rule_name(rule), *what, grpc)
            }
            Obstacle::Skip => return Evaluation::Pass,
        };
        Evaluation::Refuse(reply)
    }

    fn too_many_checks(&self, question: &Question) -> Unusable {
        let rules = question.checks.chunk_by(|a, b| a.rule == b.rule);
        let rules = rules.filter_map(|checks| Some(self.rule_name(checks.first()?.rule)));
        Unusable::TooManyChecks {
            checks: question.checks.len(),
            rules: rules.collect::<Vec<_>>().join("`, `"),
        }
    }

    /// How many rules there are.
    pub const fn count(&self) -> usize {
        self.rules.len()
    }

    /// A rule's name.
    pub fn rule_name(&self, rule: usize) -> &str {
        self.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// The name of a limit in a rule's list.
    pub fn limit_name(&self, rule: usize, limit: usize) -> &str {
        let rule = self.rules.get(rule);
        rule.and_then(|rule| rule.limits.get(limit))
            .map_or("", String::as_str)
    }

    /// Every reading of a request's target, with the rules that match in it. For people who ask why.
    pub fn readings(&self, request: &dyn Request) -> Vec<Reading> {
        let seen = Seen::new(request, &self.reader);
        let told = |reading: seen::Reading<'_, '_>| {
            let parameter = |name: &str| {
                let values = reading.parameter(name);
                let pair = |value: &[u8]| (name.to_owned(), value.to_vec());
                values.map(pair).collect::<Vec<_>>()
            };
            let rules = self.rules.iter().enumerate();
            let matching = rules
                .filter(|(_, rule)| rule.matcher.matches(reading, &mut Vec::new()) == Holds::Yes);
            Reading {
                path: reading.path().map(<[u8]>::to_vec),
                parameters: self.reader.parameters.iter().flat_map(parameter).collect(),
                matching: matching.map(|(index, _)| index).collect(),
            }
        };
        seen.readings().map(told).collect()
    }
}

/// As Envoy tells it (`Grpc::Common::hasGrpcContentType`): this content type alone, or with `+` behind it.
fn is_grpc(seen: &Seen<'_>) -> bool {
    let content_type = seen.headers().first("content-type");
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+')))
}

impl Rule {
    /// Adds the names of the query parameters that it looks at.
    pub fn parameters(&self, names: &mut Vec<String>) {
        self.matcher.parameters(names);
        for check in &self.checks {
            let by = match &check.limit {
                LimitName::Tiers { by, .. } => Some(by),
                LimitName::Fixed(_) => None,
            };
            for part in check.parts.iter().chain(by) {
                if let Source::Query(name) = &part.source {
                    names.push(name.clone());
                }
            }
        }
    }
}

impl CheckRule {
    fn derive<'a>(
        &'a self,
        rule: usize,
        mut key: Key<'_>,
        seen: &'a Seen<'_>,
        applies: &'a Applies<'a, '_>,
    ) -> Result<Check, Obstacle> {
        let limit = self.limit.choose(seen, applies)?;
        for part in &self.parts {
            match applies.find(part, seen) {
                Found::Value(kind, value) => part.add(&mut key, kind, &value),
                Found::Ambiguous => return Err(Obstacle::Ambiguous(limit)),
                Found::Unreadable => return Err(Obstacle::Unreadable(limit)),
                Found::Missing => match &self.when_missing {
                    WhenMissing::Skip => return Err(Obstacle::Skip),
                    WhenMissing::Deny => return Err(Obstacle::Missing(limit)),
                    // Under a name that no present part has, so that a client cannot send the constant itself.
                    WhenMissing::Use(constant) => {
                        key.plain(&["@missing/", &part.name], constant.as_bytes());
                    }
                },
            }
        }
        if self.cost.is_ambiguous(seen) {
            return Err(Obstacle::Ambiguous(limit));
        }
        Ok(Check {
            rule,
            limit,
            key: key.finish(),
            cost: self
                .cost
                .of(seen, applies.iter().map(|(reading, _)| *reading)),
        })
    }
}

impl LimitName {
    fn choose<'a>(
        &'a self,
        seen: &'a Seen<'_>,
        applies: &'a Applies<'a, '_>,
    ) -> Result<usize, Obstacle> {
        match self {
            Self::Fixed(limit) => Ok(*limit),
            Self::Tiers { by, map, default } => match applies.find(by, seen) {
                Found::Ambiguous => Err(Obstacle::Ambiguous(*default)),
                Found::Unreadable => Err(Obstacle::Unreadable(*default)),
                Found::Missing => Ok(*default),
                Found::Value(_, value) => Ok(map
                    .iter()
                    .find(|(tier, _)| tier.as_bytes() == &*value)
                    .map_or(*default, |(_, limit)| *limit)),
            },
        }
    }
}
