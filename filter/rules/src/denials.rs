//! The filter's denial certificates: what was denied is denied again in the VM, while that is exact, and counted.
//!
//! A question is answered here only if every decision of it is covered, its shadows too: those have to be counted
//! as if they were enforced.

use std::collections::BTreeMap;

use sluicegate_protocol::{Asked, Certificates, DeniedHere, Verdict, fingerprint};

use crate::rule::{Check, Question, Rules};

/// Denials held by one VM for one configuration; about half a kilobyte each.
const CAPACITY: usize = 4_096;

/// Certificates of the sidecar's policy, and what they have denied.
#[derive(Debug)]
pub struct Denials {
    /// The policy's epoch that all of them are of.
    epoch: u64,
    certificates: Certificates,
    /// Denied here and not reported yet: by limit and, for shadows, rule.
    unreported: BTreeMap<(String, Option<String>), u64>,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            epoch: 0,
            certificates: Certificates::new(CAPACITY),
            unreported: BTreeMap::new(),
        }
    }
}

impl Denials {
    /// The verdicts of a question all of whose decisions are covered.
    pub fn covering(
        &mut self,
        rules: &Rules,
        question: &Question,
        now_us: u64,
    ) -> Option<Vec<Verdict<'static>>> {
        if self.certificates.is_empty() {
            return None;
        }
        let mut verdicts = Vec::with_capacity(question.decisions());
        for checks in decisions(question) {
            let standing = self.certificates.covering(&print(rules, checks), now_us)?;
            verdicts.push(Verdict::Denied(standing.into_owned()));
        }
        let enforced = (!question.checks.is_empty()).then_some(None);
        let shadows = question
            .shadows
            .iter()
            .map(|shadow| Some(rules.rule_name(shadow.rule).to_owned()));
        for (verdict, shadow) in verdicts.iter().zip(enforced.into_iter().chain(shadows)) {
            if let Verdict::Denied(standing) = verdict {
                *self
                    .unreported
                    .entry((standing.limit.to_string(), shadow))
                    .or_default() += 1;
            }
        }
        Some(verdicts)
    }

    /// Remembers the denials among a question's verdicts.
    pub fn learn(
        &mut self,
        rules: &Rules,
        question: &Question,
        epoch: u64,
        verdicts: &[Verdict<'_>],
        asked: Asked,
    ) {
        if epoch < self.epoch {
            // A slow answer of a policy that has been replaced.
            return;
        }
        if epoch > self.epoch {
            self.certificates.clear();
            self.epoch = epoch;
        }
        for (checks, verdict) in decisions(question).zip(verdicts) {
            if let Verdict::Denied(standing) = verdict {
                self.certificates
                    .hold(&print(rules, checks), standing, asked);
            }
        }
    }

    /// What has been denied here since the last report, to be sent along.
    pub fn report(&mut self) -> Vec<DeniedHere<'static>> {
        let unreported = std::mem::take(&mut self.unreported).into_iter();
        let denied = |((limit, shadow), count): ((String, Option<String>), u64)| DeniedHere {
            limit: limit.into(),
            shadow: shadow.map(Into::into),
            count,
        };
        unreported.map(denied).collect()
    }

    /// A report did not arrive: it goes with the next. (If it did arrive and only its answer was lost, it is counted
    /// twice; the other way it would be lost.)
    pub fn put_back(&mut self, report: Vec<DeniedHere<'static>>) {
        for denied in report {
            let shadow = denied.shadow.map(std::borrow::Cow::into_owned);
            *self
                .unreported
                .entry((denied.limit.into_owned(), shadow))
                .or_default() += denied.count;
        }
    }

    /// Something waits to be reported.
    pub fn has_report(&self) -> bool {
        !self.unreported.is_empty()
    }
}

/// The checks of each decision, in the order of the wire.
fn decisions(question: &Question) -> impl Iterator<Item = &[Check]> {
    let enforced = (!question.checks.is_empty()).then_some(question.checks.as_slice());
    enforced.into_iter().chain(
        question
            .shadows
            .iter()
            .map(|shadow| shadow.checks.as_slice()),
    )
}

fn print(rules: &Rules, checks: &[Check]) -> String {
    fingerprint(checks.iter().map(|check| {
        (
            rules.limit_name(check.rule, check.limit),
            check.key.as_str(),
            check.cost,
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Shadow, WhenUnavailable};
    use sluicegate_protocol::Standing;

    fn rules() -> Rules {
        let rule = |name: &str, shadow: bool| {
            format!(
                r#"{{"name":"{name}","shadow":{shadow},"checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}],
                "when_unavailable":"deny"}}"#
            )
        };
        let text = format!(
            r#"{{"version":1,"sidecar":{{"cluster":"s"}},"rules":[{},{}]}}"#,
            rule("real", false),
            rule("trial", true)
        );
        crate::parse(text.as_bytes()).unwrap()
    }

    fn question(key: &str, shadowed: bool) -> Question {
        let check = |rule| Check {
            rule,
            limit: 0,
            key: key.to_owned(),
            cost: 1,
        };
        let shadows = if shadowed {
            vec![Shadow {
                rule: 1,
                checks: vec![check(1)],
            }]
        } else {
            Vec::new()
        };
        Question {
            checks: vec![check(0)],
            shadows,
            when_unavailable: WhenUnavailable::Deny,
            grpc: false,
        }
    }

    fn denied(hold_ms: u64) -> Verdict<'static> {
        Verdict::Denied(Standing {
            check: 0,
            limit: "l".into(),
            quota: 1,
            window_ms: 60_000,
            remaining: 0,
            reset_ms: 60_000,
            retry_after_ms: 60_000,
            hold_ms,
            receipt: Vec::new(),
        })
    }

    const ASKED: Asked = Asked {
        sent_us: 0,
        answered_us: 1_000,
    };

    #[test]
    fn a_denial_is_given_again_and_reported_once() {
        let (rules, mut denials) = (rules(), Denials::default());
        denials.learn(&rules, &question("a", false), 1, &[denied(1_000)], ASKED);
        for _ in 0..3 {
            assert!(
                denials
                    .covering(&rules, &question("a", false), 500_000)
                    .is_some()
            );
        }
        assert!(
            denials
                .covering(&rules, &question("b", false), 500_000)
                .is_none()
        );
        assert!(
            denials
                .covering(&rules, &question("a", false), 1_000_000)
                .is_none(),
            "it has ended"
        );
        let report = denials.report();
        assert_eq!(
            report,
            [DeniedHere {
                limit: "l".into(),
                shadow: None,
                count: 3
            }]
        );
        assert!(!denials.has_report());
        denials.put_back(report);
        assert!(denials.has_report());
    }

    #[test]
    fn a_question_with_a_shadow_is_answered_here_only_if_both_are_covered() {
        let (rules, mut denials) = (rules(), Denials::default());
        let mut other = question("b", true);
        other.checks.clear();
        denials.learn(&rules, &question("a", false), 1, &[denied(1_000)], ASKED);
        assert!(denials.covering(&rules, &other, 2_000).is_none());
        let both = question("b", true);
        denials.learn(&rules, &both, 1, &[denied(1_000), denied(1_000)], ASKED);
        assert_eq!(denials.covering(&rules, &both, 2_000).unwrap().len(), 2);
        let shadows: Vec<_> = denials
            .report()
            .into_iter()
            .map(|denied| denied.shadow)
            .collect();
        assert_eq!(shadows, [None, Some("trial".into())]);
    }

    #[test]
    fn a_certificate_dies_with_its_epoch() {
        let (rules, mut denials) = (rules(), Denials::default());
        denials.learn(&rules, &question("a", false), 1, &[denied(1_000)], ASKED);
        denials.learn(&rules, &question("b", false), 2, &[denied(1_000)], ASKED);
        assert!(
            denials
                .covering(&rules, &question("a", false), 2_000)
                .is_none()
        );
        denials.learn(&rules, &question("a", false), 1, &[denied(1_000)], ASKED);
        assert!(
            denials
                .covering(&rules, &question("a", false), 2_000)
                .is_none(),
            "a late answer of an old policy"
        );
    }
}
