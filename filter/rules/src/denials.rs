//! The filter's denial certificates: what was denied is denied again in the VM, while that is exact, and counted.
//!
//! A question is answered here only if every decision of it is covered, its shadows too: those have to be counted
//! as if they were enforced.

use std::collections::BTreeMap;

use sluicegate_protocol::{Asked, Certificates, DeniedHere, Verdict, fingerprint};

use crate::rule::{Check, Question, Rules};

/// Denials held by one VM for one configuration; about half a kilobyte each.
const CAPACITY: usize = 4_096;
/// Keys told apart in one report; denials of others are reported without theirs. Reports go with nearly every callout,
/// so that there are few in each; and a key is at most half a kilobyte.
const REPORTED_KEYS: usize = 128;

/// Certificates of the sidecar's policy, and what they have denied.
#[derive(Debug)]
pub struct Denials {
    /// The policy's epoch that all of them are of.
    epoch: u64,
    /// When the first answer of that epoch was here.
    since_us: u64,
    certificates: Certificates,
    /// Denied here and not reported yet, by key. Denials for shadows and of too many keys are under the empty key, which
    /// no check has.
    unreported: BTreeMap<String, Vec<Count>>,
}

/// Denials of one key.
#[derive(Debug)]
struct Count {
    limit: String,
    /// The rule, where nobody heeded them.
    shadow: Option<String>,
    count: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            epoch: 0,
            since_us: 0,
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
            .map(|shadow| Some(rules.rule_name(shadow.rule)));
        for (verdict, shadow) in verdicts.iter().zip(enforced.into_iter().chain(shadows)) {
            if let Verdict::Denied(standing) = verdict {
                // Shadows deny nobody, so nobody asks whom.
                let check = match shadow {
                    None => question.checks.get(standing.check),
                    Some(_) => None,
                };
                let key = check.map_or("", |check| check.key.as_str());
                self.count(key, &standing.limit, shadow, 1);
            }
        }
        Some(verdicts)
    }

    /// Counts for the next report; without an allocation where the same was counted before.
    fn count(&mut self, key: &str, limit: &str, shadow: Option<&str>, count: u64) {
        let full = self.unreported.len() >= REPORTED_KEYS;
        let key = if full && !self.unreported.contains_key(key) {
            ""
        } else {
            key
        };
        if !self.unreported.contains_key(key) {
            self.unreported.insert(key.to_owned(), Vec::new());
        }
        let Some(counts) = self.unreported.get_mut(key) else {
            return;
        };
        let known = counts
            .iter_mut()
            .find(|known| known.limit == limit && known.shadow.as_deref() == shadow);
        match known {
            Some(known) => known.count = known.count.saturating_add(count),
            None => counts.push(Count {
                limit: limit.to_owned(),
                shadow: shadow.map(str::to_owned),
                count,
            }),
        }
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
        if epoch < self.epoch && asked.sent_us <= self.since_us {
            // A slow answer of a policy that has been replaced. Asked later, it would be of a sidecar that has started
            // again, and counts from 1.
            return;
        }
        if epoch != self.epoch {
            self.certificates.clear();
            self.epoch = epoch;
            self.since_us = asked.answered_us;
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
        let mut report = Vec::new();
        for (key, counts) in std::mem::take(&mut self.unreported) {
            let denied = |count: Count| DeniedHere {
                limit: count.limit.into(),
                shadow: count.shadow.map(Into::into),
                key: (!key.is_empty()).then(|| key.clone().into()),
                count: count.count,
            };
            report.extend(counts.into_iter().map(denied));
        }
        report
    }

    /// A report did not arrive: it goes with the next. (If it did arrive and only its answer was lost, it is counted
    /// twice; the other way it would be lost.)
    pub fn put_back(&mut self, report: Vec<DeniedHere<'static>>) {
        for denied in report {
            self.count(
                denied.key.as_deref().unwrap_or_default(),
                &denied.limit,
                denied.shadow.as_deref(),
                denied.count,
            );
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
    fn a_report_tells_a_bounded_number_of_keys_apart_and_counts_all_denials() {
        let (rules, mut denials) = (rules(), Denials::default());
        for name in 0..300 {
            let question = question(&format!("k{name}"), false);
            denials.learn(&rules, &question, 1, &[denied(1_000)], ASKED);
            for _ in 0..2 {
                assert!(denials.covering(&rules, &question, 500_000).is_some());
            }
        }
        let report = denials.report();
        assert_eq!(report.iter().map(|denied| denied.count).sum::<u64>(), 600);
        let (named, rest): (Vec<_>, Vec<_>) =
            report.iter().partition(|denied| denied.key.is_some());
        assert_eq!(
            (named.len(), rest.len()),
            (REPORTED_KEYS, 1),
            "those without a key are together"
        );
        assert!(named.iter().all(|denied| denied.count == 2));
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
        assert_eq!(shadows, [Some("trial".into()), None]);
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

    #[test]
    fn a_sidecar_that_started_again_is_believed_though_it_counts_from_1() {
        let (rules, mut denials) = (rules(), Denials::default());
        denials.learn(&rules, &question("a", false), 3, &[denied(1_000)], ASKED);
        let later = Asked {
            sent_us: 1_001,
            answered_us: 1_500,
        };
        denials.learn(&rules, &question("b", false), 1, &[denied(1_000)], later);
        let mut held = |key| {
            denials
                .covering(&rules, &question(key, false), 2_000)
                .is_some()
        };
        assert!(held("b"));
        assert!(!held("a"), "a certificate of the policy before the restart");
    }
}
