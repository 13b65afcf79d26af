//! The filter's cache of denials: repeats a denial inside the VM for as long as it is exact, and counts it.
//!
//! A question is answered from the cache only if all of its decisions are cached. That includes shadow decisions, which
//! must be counted as if they were enforced.

mod unreported;

use std::collections::BTreeMap;

use sluicegate_certificates::{CallTimes, Certificates, cost_in_parts, fingerprint};
use sluicegate_protocol::{CachedDenials, LimitStatus, PolicyVersion, Verdict};

use crate::question::{Question, ResolvedCheck};

/// Most denials cached by one VM for one configuration; each takes about a quarter of a kilobyte.
const CAPACITY: usize = 4_096;
/// Most denials by slots: each release goes through them.
const CAPACITY_OF_SLOTS: usize = 256;

/// For how long a denial is cached of limits that no document has told: the next document, or another sidecar's, may end them.
const UNTOLD_MS: u64 = 1_000;

/// Cached denials of one version of the sidecar's policy, and how often they were used.
#[derive(Debug)]
pub struct DenialCache {
    /// The limits that a document of the sidecar has told last; the next one says which denials have ended.
    limits: Option<String>,
    /// Without such documents: the version of the policy that made all of them.
    version: PolicyVersion,
    /// When the first answer of that version arrived.
    since_us: u64,
    certificates: Certificates,
    /// Denials by slots, which last for milliseconds.
    of_slots: Certificates,
    /// By key. Shadow denials, and those of too many keys, are under the empty key, which no check has.
    unreported: BTreeMap<String, Vec<CachedDenials<'static>>>,
}

impl Default for DenialCache {
    fn default() -> Self {
        Self {
            limits: None,
            version: PolicyVersion::default(),
            since_us: 0,
            certificates: Certificates::new(CAPACITY),
            of_slots: Certificates::new(CAPACITY_OF_SLOTS),
            unreported: BTreeMap::new(),
        }
    }
}

impl DenialCache {
    /// The verdicts on a question, if all of its decisions are cached.
    pub fn covering(&mut self, question: &Question, now_us: u64) -> Option<Vec<Verdict<'static>>> {
        if self.certificates.is_empty() && self.of_slots.is_empty() {
            return None;
        }
        let mut denied = Vec::with_capacity(question.decisions());
        for (_, checks) in decisions(question) {
            let fingerprint = fingerprint_of(question, checks);
            let covering =
                |certificates: &Certificates| certificates.covering(&fingerprint, now_us);
            let by_rate = covering(&self.certificates);
            denied.push(by_rate.or_else(|| covering(&self.of_slots))?);
        }
        for (limit_status, (shadow, checks)) in denied.iter().zip(decisions(question)) {
            if let Some(check) = checks.get(limit_status.check) {
                self.count(&CachedDenials {
                    limit: question.limit_name(check).into(),
                    shadow: shadow.map(|rule| question.rules.rule_name(rule).into()),
                    key: Some(check.key.as_str().into()),
                    count: 1,
                });
            }
        }
        Some(denied.into_iter().map(Verdict::Denied).collect())
    }

    /// The digest of limits in the latest document of a sidecar.
    pub fn told(&self) -> Option<&str> {
        self.limits.as_deref()
    }

    /// Takes from a document the digest of the limits in force at a sidecar, and ends cached denials: those of the limits in
    /// `ended`, each with the first digits of a consumer's hashed key if only that consumer's denials end. With `None`, all end
    /// unless the digest has not changed.
    pub fn tell(&mut self, limits: &str, ended: Option<&[String]>) {
        match ended {
            Some(ended) => self.certificates.end(|limit, key| {
                let hash = key.split_once('#').map_or("", |(_, hash)| hash);
                ended.iter().any(|one| match one.split_once('#') {
                    Some((name, digits)) => name == limit && hash.starts_with(digits),
                    None => one == limit,
                })
            }),
            None if self.told() != Some(limits) => self.certificates.clear(),
            None => {}
        }
        self.limits = Some(limits.to_owned());
    }

    /// A callout was answered, with verdicts or without: the denials of an earlier version end if no document tells which. Returns
    /// for how long denials of this version may be cached; 0 if the version is the earlier one, so that the answer is late.
    pub fn answered(
        &mut self,
        version: PolicyVersion,
        limits: Option<&str>,
        times: CallTimes,
    ) -> u64 {
        if let (Some(told), Some(limits)) = (self.told(), limits) {
            return if told == limits { u64::MAX } else { UNTOLD_MS };
        }
        if version == self.version {
            return u64::MAX;
        }
        if self.has_replaced(version, times) {
            return 0;
        }
        self.certificates.clear();
        self.version = version;
        self.since_us = times.answered_us;
        u64::MAX
    }

    /// Caches the denials among a question's verdicts, for so long at most.
    pub fn learn(
        &mut self,
        question: &Question,
        most_ms: u64,
        verdicts: &[Verdict<'_>],
        times: CallTimes,
    ) {
        // Without a clock nothing may be held, for nothing would ever end.
        if times.sent_us == 0 {
            return;
        }
        for ((_, checks), verdict) in decisions(question).zip(verdicts) {
            if let Verdict::Denied(limit_status) = verdict
                && limit_status.check < checks.len()
            {
                let fingerprint = fingerprint_of(question, checks);
                let hold_ms = limit_status.hold_ms.min(most_ms);
                let limit_status = LimitStatus {
                    hold_ms,
                    ..limit_status.clone()
                };
                let certificates = if limit_status.at_once {
                    &mut self.of_slots
                } else {
                    &mut self.certificates
                };
                certificates.hold(&fingerprint, &limit_status, times);
            }
        }
    }

    /// Slots of this limit and key are free again.
    pub fn released(&mut self, limit: &str, key: &str, now_us: u64) {
        if self.of_slots.held(now_us) > 0 {
            let is_over = |other: &str, of: &str| (other, of) == (limit, key);
            self.of_slots.end(is_over);
        }
    }

    /// Whether the current policy version replaced this one: then the answer is late, and its denials may be outdated.
    const fn has_replaced(&self, version: PolicyVersion, times: CallTimes) -> bool {
        if version.instance == self.version.instance && version.instance != 0 {
            // Within one process, epochs only grow.
            return version.epoch < self.version.epoch;
        }
        // Another process, either a predecessor or another sidecar of the cluster: late if the question was sent before
        // the current version first answered. Without instance numbers, a later question with a smaller epoch means
        // that the sidecar has restarted.
        let asked_before = times.sent_us < self.since_us;
        asked_before
            && (version.instance != self.version.instance || version.epoch < self.version.epoch)
    }
}

/// The checks of each decision, in the order of the request's body, and the index of the shadow rule that it is for.
fn decisions(question: &Question) -> impl Iterator<Item = (Option<usize>, &[ResolvedCheck])> {
    let checks = question.checks.as_slice();
    let enforced = (!checks.is_empty()).then_some((None, checks));
    let shadows = question.shadows.iter();
    let shadows = shadows.map(|shadow| (Some(shadow.rule), shadow.checks.as_slice()));
    enforced.into_iter().chain(shadows)
}

fn fingerprint_of(question: &Question, checks: &[ResolvedCheck]) -> String {
    fingerprint(checks.iter().map(|check| {
        (
            question.limit_name(check),
            check.key.as_str(),
            cost_in_parts(check.cost, question.most(check)),
            check.quota,
        )
    }))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::config::document::tests::set_of;
    use crate::config::terms::WhenUnavailable;
    use crate::question::Shadow;
    use crate::rule::RuleSet;
    use sluicegate_protocol::LimitStatus;

    fn rules() -> Rc<RuleSet> {
        let checks =
            r#""checks":[{"limit":"l","key":[{"constant":"c"}]}],"when_unavailable":"deny""#;
        let real = format!(r#"{{"name":"real",{checks}}}"#);
        let trial = format!(r#"{{"name":"trial","shadow":true,{checks}}}"#);
        set_of(&[&real, &trial])
    }

    fn question(key: &str, shadowed: bool) -> Question {
        let check = |rule| ResolvedCheck {
            rule,
            limit: 0,
            key: key.to_owned(),
            cost: 1,
            reserved: None,
            quota: None,
        };
        let checks = vec![check(1)];
        let shadow = shadowed.then_some(Shadow { rule: 1, checks });
        Question {
            rules: rules(),
            checks: vec![check(0)],
            shadows: shadow.into_iter().collect(),
            when_unavailable: WhenUnavailable::Deny,
            grpc: false,
            traceparent: None,
        }
    }

    fn denied(hold_ms: u64) -> Verdict<'static> {
        Verdict::Denied(LimitStatus {
            check: 0,
            limit: "l".into(),
            quota: 1,
            window_ms: 60_000,
            remaining: 0,
            over: 0,
            reset_ms: 60_000,
            retry_after_ms: 60_000,
            until_changed: false,
            at_once: false,
            calendar: None,
            hold_ms,
            unknown: Vec::new(),
            receipt: Vec::new(),
        })
    }

    const TIMES: CallTimes = CallTimes {
        sent_us: 1,
        answered_us: 1_000,
    };

    impl DenialCache {
        /// A question for this key, alone, is answered with these verdicts by the first policy.
        fn learns(&mut self, key: &str, verdict: Verdict<'static>) {
            self.learns_by(version(1, 1), &question(key, false), &[verdict], TIMES);
        }

        fn learns_by(
            &mut self,
            version: PolicyVersion,
            asked: &Question,
            verdicts: &[Verdict<'static>],
            times: CallTimes,
        ) {
            let most_ms = self.answered(version, None, times);
            self.learn(asked, most_ms, verdicts, times);
        }

        fn covers(&mut self, key: &str, now_us: u64) -> bool {
            let asked = question(key, false);
            self.covering(&asked, now_us).is_some()
        }
    }

    const fn version(instance: u64, epoch: u64) -> PolicyVersion {
        PolicyVersion { instance, epoch }
    }

    #[test]
    fn a_cached_denial_is_repeated_and_reported_once() {
        let mut denials = DenialCache::default();
        denials.learns("a", denied(1_000));
        assert!((0..3).all(|_| denials.covers("a", 500_000)));
        assert!(!denials.covers("b", 500_000));
        assert!(!denials.covers("a", 1_000_001), "it has ended");
        let report = denials.report();
        let expected = CachedDenials {
            limit: "l".into(),
            shadow: None,
            key: Some("a".into()),
            count: 3,
        };
        assert_eq!(report, [expected]);
        assert!(!denials.has_report());
        denials.put_back(report.clone());
        assert!(denials.has_report());
        assert_eq!(denials.report(), report);
    }

    #[test]
    fn a_question_with_a_shadow_is_answered_from_the_cache_only_if_both_are_cached() {
        let mut denials = DenialCache::default();
        let mut other = question("b", true);
        other.checks.clear();
        denials.learns("a", denied(1_000));
        assert!(denials.covering(&other, 2_000).is_none());
        let both = question("b", true);
        let verdicts = [denied(1_000), denied(1_000)];
        denials.learns_by(version(1, 1), &both, &verdicts, TIMES);
        assert_eq!(denials.covering(&both, 2_000).unwrap().len(), 2);
        let report = denials.report().into_iter();
        let shadows: Vec<_> = report.map(|denied| denied.shadow).collect();
        assert_eq!(shadows, [None, Some("trial".into())]);
    }

    /// Feeds one answer for each of these versions, to a question sent at this time, which denies a key of its own
    /// (`k0`, `k1` and so on). Returns which of the denials are cached afterwards.
    fn held(answers: &[(PolicyVersion, u64)]) -> Vec<bool> {
        let mut denials = DenialCache::default();
        let asks = |index: usize| question(&format!("k{index}"), false);
        for (index, (version, sent_us)) in answers.iter().enumerate() {
            let times = CallTimes {
                sent_us: *sent_us,
                answered_us: 1_000.max(sent_us + 100),
            };
            let verdicts = [denied(1_000)];
            denials.learns_by(*version, &asks(index), &verdicts, times);
        }
        let mut held = |index| denials.covering(&asks(index), 5_000).is_some();
        (0..answers.len()).map(&mut held).collect()
    }

    /// Envoy may withhold the clock; then every time is 0, and a certificate would have no end.
    #[test]
    fn without_a_clock_no_denial_is_cached() {
        let mut denials = DenialCache::default();
        let asked = question("a", false);
        let stopped = CallTimes {
            sent_us: 0,
            answered_us: 0,
        };
        denials.learns_by(version(1, 1), &asked, &[denied(1_000)], stopped);
        assert!(denials.covering(&asked, 0).is_none());
    }

    #[test]
    fn an_answer_without_verdicts_ends_the_denials_of_an_earlier_epoch_too() {
        let mut denials = DenialCache::default();
        let asked = question("a", false);
        let mut denied_after = |answered| {
            let verdicts = [denied(1_000)];
            denials.learns_by(version(1, 2), &asked, &verdicts, TIMES);
            denials.answered(answered, None, TIMES);
            denials.covering(&asked, 5_000).is_some()
        };
        assert!(denied_after(version(1, 2)));
        assert!(denied_after(version(1, 1)), "it is late");
        assert!(!denied_after(version(1, 3)));
    }

    #[test]
    fn a_document_ends_the_denials_that_it_names_whatever_answers_say() {
        let mut denials = DenialCache::default();
        let keys = [
            "k#00112233aa;@missing/k=1",
            "k#99999999aa;@missing/k=1",
            "plain",
        ];
        let learn = |denials: &mut DenialCache, limits| {
            for key in keys {
                let most_ms = denials.answered(version(1, 1), Some(limits), TIMES);
                denials.learn(&question(key, false), most_ms, &[denied(5_000)], TIMES);
            }
        };
        let ends = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        denials.tell("first", None);
        for (ended, held) in [
            (Some(ends(&[])), [true; 3]),
            (Some(ends(&["m", "m#00112233"])), [true; 3]),
            (Some(ends(&["l#00112233"])), [false, true, true]),
            (Some(ends(&["l"])), [false; 3]),
            (None, [false; 3]),
        ] {
            denials.tell("first", None);
            learn(&mut denials, "first");
            // The question was sent to a sidecar that has not changed yet, or to one that has: no document tells so.
            denials.answered(version(1, 2), Some("second"), TIMES);
            denials.tell("second", ended.as_deref());
            assert_eq!(keys.map(|key| denials.covers(key, 2_000_000)), held);
            learn(&mut denials, "first");
            assert!(keys.iter().all(|key| denials.covers(key, 1_000_000)));
            assert!(!keys.iter().any(|key| denials.covers(key, 1_000_002)));
        }
    }

    #[test]
    fn another_instance_is_another_policy_even_with_the_same_epoch() {
        for epoch in [1, 3] {
            let (before, after) = (version(8, epoch), version(3, 1));
            assert_eq!(held(&[(before, 1), (after, 2_000)]), [false, true]);
            // A late answer of the previous process is not cached, and does no harm.
            let late = held(&[(before, 1), (after, 2_000), (before, 1_500)]);
            assert_eq!(late, [false, true, false]);
        }
    }

    #[test]
    fn a_sidecar_without_an_instance_number_is_compared_by_epoch() {
        let (first, third) = (version(0, 1), version(0, 3));
        assert_eq!(held(&[(first, 1), (third, 1)]), [false, true]);
        assert_eq!(held(&[(third, 1), (first, 1)]), [true, false], "late");
        assert_eq!(held(&[(third, 1), (first, 2_000)]), [false, true]);
    }

    #[test]
    fn a_denial_counts_under_the_configured_limit_and_one_for_an_unknown_check_is_not_cached() {
        let mut denials = DenialCache::default();
        let answered = |check, limit: &'static str| {
            let mut verdict = denied(u64::MAX);
            if let Verdict::Denied(status) = &mut verdict {
                (status.check, status.limit) = (check, limit.into());
            }
            verdict
        };
        denials.learns("a", answered(1, "l"));
        assert!(!denials.covers("a", 2_000));
        denials.learns("a", answered(0, "<b>"));
        assert!(denials.covers("a", 60_000_000));
        assert_eq!(denials.report()[0].limit, "l");
        assert!(!denials.covers("a", 60_000_001));
    }
}
