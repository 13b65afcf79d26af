//! The filter's denial certificates: what was denied is denied again in the VM, while that is exact, and counted.
//!
//! A question is answered here only if every decision of it is covered, its shadows too: those have to be counted
//! as if they were enforced.

mod unreported;

use sluicegate_certificates::{Asked, Certificates, fingerprint};
use sluicegate_protocol::{DeniedHere, PolicyVersion, Verdict};

use crate::rule::{Check, Question, Rules};
use unreported::Unreported;

/// Denials held by one VM for one configuration; about a quarter of a kilobyte each.
const CAPACITY: usize = 4_096;

/// Certificates of the sidecar's policy, and what they have denied.
#[derive(Debug)]
pub struct Denials {
    /// The policy that all of them are of.
    version: PolicyVersion,
    /// When the first answer of that policy was here.
    since_us: u64,
    certificates: Certificates,
    unreported: Unreported,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            version: PolicyVersion::default(),
            since_us: 0,
            certificates: Certificates::new(CAPACITY),
            unreported: Unreported::default(),
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
            verdicts.push(Verdict::Denied(standing));
        }
        let enforced = (!question.checks.is_empty()).then_some(None);
        let shadows = question.shadows.iter().map(|shadow| Some(shadow.rule));
        let decisions = decisions(question).zip(enforced.into_iter().chain(shadows));
        for (verdict, (checks, shadow)) in verdicts.iter().zip(decisions) {
            if let Verdict::Denied(standing) = verdict
                && let Some(check) = checks.get(standing.check)
            {
                // Shadows deny nobody, so nobody asks whom.
                let key = shadow.map_or(check.key.as_str(), |_| "");
                let limit = rules.limit_name(check.rule, check.limit);
                let shadow = shadow.map(|rule| rules.rule_name(rule));
                self.unreported.count(key, limit, shadow, 1);
            }
        }
        Some(verdicts)
    }

    /// Remembers the denials among a question's verdicts.
    pub fn learn(
        &mut self,
        rules: &Rules,
        question: &Question,
        version: PolicyVersion,
        verdicts: &[Verdict<'_>],
        asked: Asked,
    ) {
        if version != self.version {
            if self.has_replaced(version, asked) {
                return;
            }
            self.certificates.clear();
            self.version = version;
            self.since_us = asked.answered_us;
        }
        for (checks, verdict) in decisions(question).zip(verdicts) {
            if let Verdict::Denied(standing) = verdict
                && standing.check < checks.len()
            {
                self.certificates
                    .hold(&print(rules, checks), standing, asked);
            }
        }
    }

    /// A slow answer of a policy that the one in force has replaced: its denials may not be true any more.
    const fn has_replaced(&self, version: PolicyVersion, asked: Asked) -> bool {
        if version.instance == self.version.instance && version.instance != 0 {
            // One process only counts up.
            return version.epoch < self.version.epoch;
        }
        // Of the process before, or of another sidecar of the same cluster: it was asked before the newest one answered.
        // Of a sidecar that does not name its process, an answer asked for later is of one that has started again.
        let asked_before = asked.sent_us < self.since_us;
        asked_before
            && (version.instance != self.version.instance || version.epoch < self.version.epoch)
    }

    /// What has been denied here since the last report, to be sent along.
    pub fn report(&mut self) -> Vec<DeniedHere<'static>> {
        self.unreported.report()
    }

    /// A report did not arrive: it goes with the next. (If it did arrive and only its answer was lost, it is counted
    /// twice; the other way it would be lost.)
    pub fn put_back(&mut self, report: Vec<DeniedHere<'static>>) {
        self.unreported.put_back(report);
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
            traceparent: None,
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

    const fn version(instance: u64, epoch: u64) -> PolicyVersion {
        PolicyVersion { instance, epoch }
    }

    #[test]
    fn a_denial_is_given_again_and_reported_once() {
        let (rules, mut denials) = (rules(), Denials::default());
        denials.learn(
            &rules,
            &question("a", false),
            version(1, 1),
            &[denied(1_000)],
            ASKED,
        );
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
                key: Some("a".into()),
                count: 3
            }]
        );
        assert!(!denials.has_report());
        denials.put_back(report.clone());
        assert!(denials.has_report());
        assert_eq!(denials.report(), report);
    }

    #[test]
    fn a_question_with_a_shadow_is_answered_here_only_if_both_are_covered() {
        let (rules, mut denials) = (rules(), Denials::default());
        let mut other = question("b", true);
        other.checks.clear();
        denials.learn(
            &rules,
            &question("a", false),
            version(1, 1),
            &[denied(1_000)],
            ASKED,
        );
        assert!(denials.covering(&rules, &other, 2_000).is_none());
        let both = question("b", true);
        denials.learn(
            &rules,
            &both,
            version(1, 1),
            &[denied(1_000), denied(1_000)],
            ASKED,
        );
        assert_eq!(denials.covering(&rules, &both, 2_000).unwrap().len(), 2);
        let shadows: Vec<_> = denials
            .report()
            .into_iter()
            .map(|denied| denied.shadow)
            .collect();
        assert_eq!(shadows, [Some("trial".into()), None]);
    }

    /// Whether a denial of this key is held after an answer of each of these versions, asked for at this time, has denied a
    /// key of its own: `k0`, `k1` and so on.
    fn held(answers: &[(PolicyVersion, u64)]) -> Vec<bool> {
        let (rules, mut denials) = (rules(), Denials::default());
        let asks = |index: usize| question(&format!("k{index}"), false);
        for (index, (version, sent_us)) in answers.iter().enumerate() {
            let asked = Asked {
                sent_us: *sent_us,
                answered_us: 1_000.max(sent_us + 100),
            };
            let verdicts = [denied(1_000)];
            denials.learn(&rules, &asks(index), *version, &verdicts, asked);
        }
        let mut held = |index| denials.covering(&rules, &asks(index), 5_000).is_some();
        (0..answers.len()).map(&mut held).collect()
    }

    #[test]
    fn a_certificate_dies_with_its_epoch() {
        let (old, new) = (version(1, 1), version(1, 2));
        assert_eq!(held(&[(old, 0), (new, 0)]), [false, true]);
        // An answer of the policy before is late whenever it was asked for: one process only counts up.
        for sent_us in [0, 2_000] {
            let late = held(&[(old, 0), (new, 0), (old, sent_us)]);
            assert_eq!(late, [false, true, false]);
        }
    }

    #[test]
    fn f15_another_instance_is_another_policy_though_its_epoch_is_the_same() {
        for epoch in [1, 3] {
            let (before, after) = (version(8, epoch), version(3, 1));
            assert_eq!(held(&[(before, 0), (after, 2_000)]), [false, true]);
            // What the process before answers late is not held, and spoils nothing.
            let late = held(&[(before, 0), (after, 2_000), (before, 1_500)]);
            assert_eq!(late, [false, true, false]);
        }
    }

    #[test]
    fn f15_a_sidecar_that_does_not_name_its_instance_is_understood_as_before() {
        let (first, third) = (version(0, 1), version(0, 3));
        assert_eq!(held(&[(first, 0), (third, 0)]), [false, true]);
        assert_eq!(held(&[(third, 0), (first, 0)]), [true, false], "late");
        assert_eq!(held(&[(third, 0), (first, 2_000)]), [false, true]);
    }

    #[test]
    fn f15_a_denial_is_counted_by_the_configured_limit_and_one_of_no_check_is_not_held() {
        let (rules, mut denials) = (rules(), Denials::default());
        let asked = question("a", false);
        let answered = |check, limit: &'static str| {
            let Verdict::Denied(standing) = denied(u64::MAX) else {
                panic!("a denial")
            };
            let limit = limit.into();
            Verdict::Denied(Standing {
                check,
                limit,
                ..standing
            })
        };
        denials.learn(&rules, &asked, version(1, 1), &[answered(1, "l")], ASKED);
        assert!(denials.covering(&rules, &asked, 2_000).is_none());
        denials.learn(&rules, &asked, version(1, 1), &[answered(0, "<b>")], ASKED);
        assert!(denials.covering(&rules, &asked, 59_999_999).is_some());
        assert_eq!(denials.report()[0].limit, "l");
        assert!(denials.covering(&rules, &asked, 60_000_000).is_none());
    }
}
