//! What a verdict, or its absence, means for the request that waits for it.

use sluicegate_protocol::{Code, LimitStatus, Verdict, WithoutStore, part_of};

use crate::config::terms::WhenUnavailable;
use crate::question::{Question, ResolvedCheck};
use crate::reply::{self, HeaderFields, LimitTexts, Reply};
use crate::stats::Counters;
use crate::verdict_error::VerdictError;

/// What happens to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// It continues to the upstream; add these headers to the response. The text, if there is any, has the verdicts of shadow rules,
    /// for Envoy's filter state: `sluicegate_shadow{rule=per-key,limit=per-key,verdict=denied}`, with a space between several.
    Continue(HeaderFields, String),
    /// It continues to the upstream without a verdict, as its rules allow. The text names rule and reason, for Envoy's
    /// filter state and thus its access log: `sluicegate_unmetered{rule=per-key,reason=timeout}`.
    Unmetered(String),
    /// The client gets this reply.
    Answer(Reply),
}

impl Conclusion {
    /// It continues as it is.
    pub fn unchanged() -> Self {
        Self::Continue(HeaderFields::default(), String::new())
    }

    /// The same, with the verdicts of shadow rules for the filter state.
    fn with_shadows(self, told: String) -> Self {
        match self {
            same if told.is_empty() => same,
            Self::Continue(headers, _) => Self::Continue(headers, told),
            Self::Unmetered(why) => Self::Unmetered(format!("{why} {told}")),
            Self::Answer(mut reply) => {
                let told = match reply.subject {
                    Some(subject) => format!("{subject} {told}"),
                    None => told,
                };
                reply.subject = Some(told.into());
                Self::Answer(reply)
            }
        }
    }
}

impl Question {
    /// Turns its verdicts, or the reason for their absence, into a conclusion, and counts that. Also returns why a verdict is
    /// missing, if one is. `system_s` is now, in seconds since 1970; it is asked only for a field that has a date.
    pub fn conclude(
        &self,
        verdicts: Result<&[Verdict<'_>], VerdictError>,
        system_s: &dyn Fn() -> u64,
    ) -> (Conclusion, Option<VerdictError>) {
        let mut verdicts = match verdicts {
            Ok(verdicts) => verdicts.iter(),
            Err(why) => return self.without_verdict(None, why, &[]),
        };
        let (conclusion, mut why) = if self.checks.is_empty() {
            (Conclusion::unchanged(), None)
        } else {
            self.enforce(verdicts.next(), system_s)
        };
        let mut told = Vec::new();
        for (shadow, verdict) in self.shadows.iter().zip(verdicts) {
            match self.count_shadow(&shadow.checks, verdict) {
                Ok(verdict) => told.push(verdict),
                Err(missing) => why = why.or(missing),
            }
        }
        (conclusion.with_shadows(told.join(" ")), why)
    }

    fn enforce(
        &self,
        verdict: Option<&Verdict<'_>>,
        system_s: &dyn Fn() -> u64,
    ) -> (Conclusion, Option<VerdictError>) {
        let Some(verdict) = verdict else {
            let why = VerdictError::Body("it has no verdict".to_owned());
            return self.without_verdict(None, why, &[]);
        };
        let conclusion = match (decided_by(&self.checks, verdict), verdict) {
            (Ok(Some(_)), Verdict::Admitted(LimitStatus { unknown, .. }))
                if !unknown.is_empty() =>
            {
                let why = "its policy lacks a limit".to_owned();
                return self.without_verdict(None, VerdictError::Refused(why), unknown);
            }
            (Ok(Some(check)), Verdict::Admitted(limit_status)) => {
                self.admitted(check, limit_status, system_s)
            }
            (Ok(Some(check)), Verdict::Denied(limit_status)) => {
                Conclusion::Answer(self.denied(check, limit_status, system_s))
            }
            (Ok(_), _) => Conclusion::Answer(self.cost_over_limit()),
            (Err(why), Verdict::Unavailable { then }) => {
                return self.without_verdict(*then, why, &[]);
            }
            (Err(why), _) => return self.without_verdict(None, why, &[]),
        };
        (conclusion, None)
    }

    fn count(&self, counter: usize) {
        self.rules.counters.count(counter);
    }

    fn admitted(
        &self,
        check: &ResolvedCheck,
        limit_status: &LimitStatus<'_>,
        system_s: &dyn Fn() -> u64,
    ) -> Conclusion {
        self.count(Counters::ADMITTED);
        // The first rule with `on_admitted` reports the tightest limit of all rules.
        let telling = self.checks.iter().find_map(|check| {
            let style = &self.rules.rules.get(check.rule)?.reply;
            style.on_admitted.then_some(style)
        });
        let mut headers = HeaderFields::default();
        if let Some((style, texts)) = telling.zip(self.texts_of(check)) {
            let until_ms = limit_status.reset_ms;
            let listed = self.listed(&texts.name);
            style.write(
                texts,
                listed,
                limit_status,
                until_ms,
                system_s,
                &mut headers,
            );
        }
        Conclusion::Continue(headers, String::new())
    }

    fn denied(
        &self,
        check: &ResolvedCheck,
        limit_status: &LimitStatus<'_>,
        system_s: &dyn Fn() -> u64,
    ) -> Reply {
        self.count(Counters::DENIED);
        self.count(self.rules.counters.denied(check.rule, check.limit));
        // Several rules may count the same units by the same limit.
        let is_same = |one: &&ResolvedCheck| {
            one.key == check.key && self.limit_name(one) == self.limit_name(check)
        };
        let cost = |one: &ResolvedCheck| match self.most(one) {
            None => one.cost,
            Some(most) => one.cost.min(part_of(limit_status.quota, most)),
        };
        let cost = match self.checks.as_slice() {
            [one] => cost(one),
            all => all.iter().filter(is_same).map(cost).sum(),
        };
        match self.rules.rules.get(check.rule).zip(self.texts_of(check)) {
            Some((rule, texts)) => Reply {
                subject: Some(texts.subject(&check.key)),
                ..Reply::too_many_requests(
                    texts,
                    self.listed(&texts.name),
                    limit_status,
                    cost,
                    &rule.reply,
                    self.grpc,
                    system_s,
                )
            },
            // Cannot happen: every check of a question has a rule.
            None => Reply::unavailable(None, "decision", self.grpc),
        }
    }

    fn texts_of(&self, check: &ResolvedCheck) -> Option<&LimitTexts> {
        self.rules.rules.get(check.rule)?.limits.get(check.limit)
    }

    /// The texts of all limits of the enforced checks, each limit once. The quota that a claim gives is known of the limit that
    /// decided only: of another one, nothing would be true.
    fn listed<'a>(&'a self, decided: &'a str) -> impl Iterator<Item = &'a LimitTexts> {
        let is_known =
            move |check: &ResolvedCheck| check.quota.is_none() || self.limit_name(check) == decided;
        let each = self.checks.iter().enumerate();
        let once = each.filter(move |(index, check)| {
            let name = self.limit_name(check);
            let mut earlier = self.checks.iter().take(*index);
            let is_repeated = |earlier| is_known(earlier) && self.limit_name(earlier) == name;
            is_known(check) && !earlier.any(is_repeated)
        });
        once.filter_map(|(_, check)| self.texts_of(check))
    }

    /// The answer does not say which check costs too much, so rule and limit are named only if all checks have the
    /// same.
    fn cost_over_limit(&self) -> Reply {
        self.count(Counters::REFUSED_COST);
        let checks = self.checks.as_slice();
        let first = checks
            .first()
            .filter(|first| checks.iter().all(|check| check.rule == first.rule));
        let limit = first
            .filter(|first| checks.iter().all(|check| check.limit == first.limit))
            .map(|check| self.limit_name(check));
        let rule = first.map(|check| self.rules.rule_name(check.rule));
        Reply::cost_over_limit(rule, limit, self.grpc)
    }

    /// The policy's `when_store_is_down` overrides the rules' `when_unavailable`. `of`: the indices of the checks without a verdict if
    /// the others were admitted, and took their units.
    fn without_verdict(
        &self,
        by_policy: Option<WithoutStore>,
        why: VerdictError,
        of: &[usize],
    ) -> (Conclusion, Option<VerdictError>) {
        let (counter, reason) = why.kind();
        self.count(counter);
        let checks = self.checks.iter().enumerate();
        let checks = checks.filter(|(index, _)| of.is_empty() || of.contains(index));
        // The checks of one rule are adjacent.
        let mut rules: Vec<_> = checks.map(|(_, check)| check.rule).collect();
        rules.dedup();
        let wants = |rule: &usize| Some(self.rules.rules.get(*rule)?.when_unavailable);
        let by_rules = rules.iter().filter_map(wants).max();
        let by_rules = by_rules
            .filter(|_| !of.is_empty())
            .unwrap_or(self.when_unavailable);
        let when = match why {
            // The client itself is the reason.
            VerdictError::SubjectFull => WhenUnavailable::Deny,
            _ => by_policy.map_or(by_rules, Into::into),
        };
        // The rules that decided; none if the policy did, even if a rule has the same `when_unavailable`.
        let decided = |rule: &usize| by_policy.is_none() && wants(rule) == Some(when);
        let first = rules.iter().copied().find(decided);
        // Where none did, all are counted.
        let rules = rules.iter().copied();
        let rules = rules.filter(|rule| first.is_none() || decided(rule));
        let rule = first.map(|rule| self.rules.rule_name(rule));
        let counters = &self.rules.counters;
        let conclusion = match when {
            // A request that only shadow rules match never depended on a verdict.
            _ if self.checks.is_empty() => Conclusion::unchanged(),
            WhenUnavailable::Allow => {
                self.count(Counters::UNAVAILABLE_ALLOWED);
                rules.for_each(|rule| self.count(counters.unavailable_allowed(rule)));
                let labels = [("rule", rule), ("reason", Some(reason))];
                Conclusion::Unmetered(reply::details("unmetered", &labels))
            }
            WhenUnavailable::Deny => {
                self.count(Counters::UNAVAILABLE_DENIED);
                rules.for_each(|rule| self.count(counters.unavailable_denied(rule)));
                Conclusion::Answer(Reply::unavailable(rule, reason, self.grpc))
            }
        };
        (conclusion, Some(why))
    }

    /// Counts the verdict of a shadow rule; returns it as text, or why there is none.
    fn count_shadow(
        &self,
        checks: &[ResolvedCheck],
        verdict: &Verdict<'_>,
    ) -> Result<String, Option<VerdictError>> {
        let counters = &self.rules.counters;
        let (check, counter, verdict) = match (decided_by(checks, verdict), verdict) {
            (Ok(Some(check)), Verdict::Admitted(_)) => {
                let counter = counters.shadow_admitted(check.rule, check.limit);
                (check, counter, "admitted")
            }
            // A request that costs too much would always be refused. Counted for the first check's limit, as the answer does
            // not name it.
            (Ok(check), _) => {
                let check = check.or(checks.first()).ok_or(None)?;
                let counter = counters.shadow_denied(check.rule, check.limit);
                (check, counter, "denied")
            }
            (Err(why), _) => {
                self.count(why.kind().0);
                return Err(Some(why));
            }
        };
        self.count(counter);
        let (rule, limit) = (self.rules.rule_name(check.rule), self.limit_name(check));
        let labels = [("rule", rule), ("limit", limit), ("verdict", verdict)];
        Ok(reply::details(
            "shadow",
            &labels.map(|(name, value)| (name, Some(value))),
        ))
    }
}

/// The check that a verdict refers to; none if the decision costs more than a limit ever allows. The limit's name then comes from
/// the configuration and not from the answer, so that clients only ever see names that the operator chose.
fn decided_by<'a>(
    checks: &'a [ResolvedCheck],
    verdict: &Verdict<'_>,
) -> Result<Option<&'a ResolvedCheck>, VerdictError> {
    match verdict {
        Verdict::Admitted(LimitStatus { check, .. })
        | Verdict::Denied(LimitStatus { check, .. }) => {
            let unknown = || format!("it names check {check} of {}", checks.len());
            let decided = checks.get(*check).map(Some);
            decided.ok_or_else(|| VerdictError::Body(unknown()))
        }
        Verdict::Error(problem) if problem.code == Code::CostOverLimit => Ok(None),
        Verdict::Error(problem) => {
            // Bounded and without control characters, because it goes to the log.
            let text = problem.message.chars().filter(|c| !c.is_control());
            Err(VerdictError::Refused(text.take(300).collect()))
        }
        Verdict::Unavailable { .. } => Err(VerdictError::StoreUnavailable),
    }
}
