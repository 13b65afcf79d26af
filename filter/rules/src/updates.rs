//! When to fetch the rules that the sidecar pushes, and which of them to put in force.
//!
//! A filter nearly always has a request for rules at the sidecar, which answers when its rules differ from the filter's.
//! Besides, each answer to a question names the digest of the rules in force, and of earlier ones whose limits that sidecar
//! still decides. Sidecars behind one cluster may have different policies, for a while or by mistake; then a filter keeps its
//! rules as long as one of the sidecars has them in force, and takes no rules that another sidecar cannot decide.

use sluicegate_protocol::lists;

/// How long a sidecar counts after its last answer, whatever others say. A filter waits as long for sidecars that may be idle.
const RECENT_US: u64 = 2_000_000;
/// A filter without requests hears from each of many sidecars less often than that: one counts until others have given this many
/// answers for each sidecar since.
const COUNTS_FOR_TURNS: usize = 2;
/// A sidecar that has not answered while others gave more answers than this is gone. The latest are remembered.
const MAX_MISSED: u64 = 16;
const MAX_SIDECARS: usize = 64;
/// How long to wait after a request that failed, or that was answered at once.
const RETRY_US: u64 = 500_000;
/// How long answers must name other rules until a request that does not bring them is given up.
const GIVE_UP_US: u64 = 1_000_000;
/// Longest reason that is kept, in characters: it is sent in a header.
const MAX_WHY: usize = 500;

/// Which rules are in force, and who names them.
#[derive(Debug, Default)]
pub struct Updates {
    in_force: Option<String>,
    sidecars: Vec<Sidecar>,
    /// Answers so far.
    answers: u64,
    /// Since when a sidecar has had others in force.
    behind_us: Option<u64>,
    /// The newest digest that could not be used, and why.
    refused: Option<(String, String)>,
    /// How often the rules in force, refused or held back have changed: the filter reports each change to all sidecars at once.
    revision: u64,
    /// When to send the next request.
    next_us: u64,
    /// How many were sent.
    requests: u64,
}

/// A sidecar's latest answer.
#[derive(Debug, Default)]
struct Sidecar {
    instance: u64,
    at_us: u64,
    /// The number of this answer.
    answer: u64,
    in_force: String,
    earlier: String,
    /// The revision of the latest report that it has answered.
    told: u64,
}

impl Sidecar {
    /// Whether it decides all that the rules with this digest ask for.
    fn names(&self, digest: &str) -> bool {
        self.in_force == digest || lists(&self.earlier, digest)
    }

    const fn is_recent(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.at_us) < RECENT_US
    }
}

impl Updates {
    /// The digest of the rules in force.
    pub fn in_force(&self) -> Option<&str> {
        self.in_force.as_deref()
    }

    /// The digest that could not be used, and why.
    pub fn refused(&self) -> Option<(&str, &str)> {
        let refused = self.refused.as_ref();
        refused.map(|(digest, why)| (digest.as_str(), why.as_str()))
    }

    /// Whether the rules with this digest are in force or refused.
    fn knows(&self, digest: &str) -> bool {
        let refused = self.refused().map(|(refused, _)| refused);
        [self.in_force(), refused].contains(&Some(digest))
    }

    /// Whether to send a request now, if none is under way.
    pub const fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// Whether to report often: a sidecar has other rules in force, so that the filter must hear from all sidecars and have all of
    /// them keep the rules that it needs; or a sidecar does not know the latest report.
    pub fn reports_often(&self) -> bool {
        self.behind_us.is_some() || self.is_untold()
    }

    /// Whether a sidecar has not answered a report since the last change.
    pub fn is_untold(&self) -> bool {
        let mut told = self.sidecars.iter().map(|one| one.told);
        told.any(|told| told != self.revision)
    }

    /// The revision of a report that is written now.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// A sidecar has answered a report of this revision.
    pub fn told(&mut self, instance: u64, revision: u64) {
        let mut sidecars = self.sidecars.iter_mut();
        if let Some(sidecar) = sidecars.find(|one| one.instance == instance) {
            sidecar.told = revision;
        }
    }

    /// The sidecars whose rules count.
    fn counted(&self, now_us: u64) -> impl Iterator<Item = &Sidecar> + Clone {
        let most = (COUNTS_FOR_TURNS * self.sidecars.len()) as u64;
        let counts =
            move |one: &&Sidecar| one.is_recent(now_us) || self.answers - one.answer < most;
        self.sidecars.iter().filter(counts)
    }

    /// Whether no more than one sidecar has answered lately.
    pub fn has_one_sidecar(&self, now_us: u64) -> bool {
        let recent = self.sidecars.iter().filter(|one| one.is_recent(now_us));
        recent.count() <= 1
    }

    /// A digest that a sidecar has in force and this filter does not, and the sidecar because of which it does not.
    pub fn held(&self, now_us: u64) -> Option<(&str, u64)> {
        let is_own = |one: &&Sidecar| Some(one.in_force.as_str()) == self.in_force();
        let mut newest = self.sidecars.iter().rev();
        let by = newest.clone().find(is_own)?;
        let held = newest.find(|one| !self.knows(&one.in_force))?;
        let may = self.may_replace(&held.in_force, now_us);
        (!may).then_some((&held.in_force, by.instance))
    }

    /// A request has been sent.
    pub const fn sent(&mut self, now_us: u64) {
        self.next_us = now_us.saturating_add(RETRY_US);
        self.requests = self.requests.wrapping_add(1);
    }

    /// How long answers must name other rules until the request under way, which does not bring them, is given up. Not always the
    /// same: Envoy takes sidecars in turn, and a worker without traffic makes callouts at a steady pace, so that each of its requests
    /// would reach the same sidecar.
    pub const fn gives_up_after_us(&self) -> u64 {
        // Multiples of the golden ratio fall into no rhythm.
        let is_longer = self.requests.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
        GIVE_UP_US + if is_longer { RETRY_US } else { 0 }
    }

    /// There was no answer. Every other time the next request is sent at once: Envoy takes sidecars in turn, and at a steady pace
    /// each might reach the same one, which is not there.
    pub const fn failed(&mut self, now_us: u64) {
        if self.requests % 2 == 1 {
            self.next_us = now_us;
        }
    }

    /// The answer was no document: the next request waits longer, since this one may have been large.
    pub const fn unusable(&mut self, now_us: u64) {
        self.next_us = now_us.saturating_add(RETRY_US * 10);
    }

    /// A sidecar names the digest in force there, and earlier ones. Returns whether its rules may replace those in force here.
    pub fn named(&mut self, digest: &str, earlier: &str, instance: u64, now_us: u64) -> bool {
        self.answers += 1;
        let index = self
            .sidecars
            .iter()
            .position(|one| one.instance == instance);
        let mut sidecar = index.map_or_else(Sidecar::default, |index| self.sidecars.remove(index));
        let is_in_force = self.in_force() == Some(digest);
        if sidecar.in_force != digest || sidecar.earlier != earlier {
            if is_in_force && index.is_some() && sidecar.in_force != digest {
                // The old file is back.
                self.refused = None;
                self.revision += 1;
            }
            (sidecar.in_force, sidecar.earlier) = (digest.to_owned(), earlier.to_owned());
        }
        (sidecar.instance, sidecar.at_us, sidecar.answer) = (instance, now_us, self.answers);
        let surplus = (self.sidecars.len() + 1).saturating_sub(MAX_SIDECARS);
        self.sidecars.drain(..surplus);
        self.sidecars.push(sidecar);
        let answers = self.answers;
        self.sidecars
            .retain(|one| one.is_recent(now_us) || answers - one.answer <= MAX_MISSED);
        let mut in_force = self.sidecars.iter().map(|one| one.in_force.as_str());
        let is_behind = in_force.any(|other| self.in_force() != Some(other));
        if self.behind_us.is_some() && !is_behind {
            self.revision += 1;
        }
        self.behind_us = is_behind.then(|| self.behind_us.unwrap_or(now_us));
        self.may_replace(digest, now_us)
    }

    /// Whether a sidecar has rules in force that may replace those here.
    pub fn wants(&self, now_us: u64) -> bool {
        let mut sidecars = self.sidecars.iter();
        sidecars.any(|one| self.may_replace(&one.in_force, now_us))
    }

    /// Whether the rules with this digest may replace those in force now.
    fn may_replace(&self, digest: &str, now_us: u64) -> bool {
        if self.knows(digest) {
            return false;
        }
        let Some(in_force) = self.in_force() else {
            return true;
        };
        // One that has taken another's place may not decide by the rules in force here.
        let cannot = |one: &Sidecar| one.is_recent(now_us) && !one.names(in_force);
        let is_replaced = self.has_one_sidecar(now_us) && self.sidecars.iter().any(cannot);
        let counted = self.counted(now_us);
        // The rules in force here stay as long as a sidecar has them in force, unless another one cannot decide by them.
        let is_left = counted.clone().all(|one| one.in_force != in_force)
            || !counted.clone().all(|one| one.names(in_force));
        let is_wanted = is_left && counted.clone().all(|one| one.names(digest));
        // Then none of those that answer can decide by the rules in force here.
        let is_stuck = !counted.clone().any(|one| one.names(in_force));
        let since_us = self.behind_us.unwrap_or(now_us);
        let all_heard = self.sidecars.iter().all(|one| one.names(digest))
            || now_us.saturating_sub(since_us) >= RECENT_US;
        is_replaced || ((is_wanted || is_stuck) && all_heard)
    }

    /// These rules are in force now.
    pub fn replaced(&mut self, digest: String) {
        self.in_force = Some(digest);
        (self.behind_us, self.refused, self.next_us) = (None, None, 0);
        self.revision += 1;
    }

    /// These cannot be used.
    pub fn refuse(&mut self, digest: String, why: &str) {
        self.refused = Some((digest, why.chars().take(MAX_WHY).collect()));
        self.revision += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    const A: &str = "aaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbb";
    const C: &str = "cccccccccccc";

    fn running(digest: &str) -> Updates {
        let mut updates = Updates::default();
        assert!(updates.named(digest, "", 1, 0));
        updates.replaced(digest.to_owned());
        updates
    }

    #[test]
    fn the_only_sidecar_that_answers_replaces_the_rules_at_once() {
        for earlier in ["", "aaaaaa"] {
            let mut updates = running(A);
            assert!(!updates.named(A, "", 1, 1));
            assert!(updates.named(B, earlier, 1, 2), "{earlier}");
        }
    }

    /// Each step: a sidecar, what it has in force and what it decides besides, when, and whether these rules come into force.
    #[test]
    fn rules_are_replaced_when_all_that_answer_decide_the_next_and_none_has_the_earlier_in_force() {
        for (what, steps) in [
            (
                "a roll-out, with either sidecar first",
                &[
                    (2, A, "", 0, false),
                    (1, B, "aaaaaa", 1_000, false),
                    (2, A, "", 1_900, false),
                    (1, B, "aaaaaa", 2_500, false),
                    (2, B, "aaaaaa", 2_600, true),
                ][..],
            ),
            (
                "a rollback of one: the earlier rules stay although both decide both",
                &[
                    (2, A, "bbbbbb", 0, false),
                    (1, B, "aaaaaa", 0, false),
                    (1, B, "aaaaaa", 1_900, false),
                    (2, B, "aaaaaa", 1_950, true),
                ],
            ),
            (
                "one that has the file never, and then is gone",
                &[
                    (2, A, "", 0, false),
                    (1, B, "", 1_000, false),
                    (2, A, "", 9_000, false),
                    (1, B, "", 10_900, false),
                    (1, B, "", 11_000, true),
                ],
            ),
            (
                "one that may be idle is waited for",
                &[
                    (2, A, "", 0, false),
                    (1, B, "aaaaaa", 30_000, false),
                    (1, B, "aaaaaa", 31_800, false),
                    (1, B, "aaaaaa", 31_900, false),
                    (1, B, "aaaaaa", 31_900, false),
                    (1, B, "aaaaaa", 32_000, true),
                ],
            ),
            (
                "one that decided the next rules besides when it answered last, long ago",
                &[
                    (2, A, "bbbbbb", 0, false),
                    (1, B, "aaaaaa", 60_000, false),
                    (2, A, "", 60_500, false),
                    (1, B, "aaaaaa", 61_000, false),
                ],
            ),
            (
                "a start in a roll-out, by the rules that the other one cannot decide",
                &[(1, A, "bbbbbb", 0, false), (2, B, "", 100, true)],
            ),
            (
                "a restart with another file, while nobody asked",
                &[(2, B, "", 0, true)],
            ),
            (
                "a restart with another file: the only one that answers cannot decide",
                &[
                    (1, A, "", 0, false),
                    (2, B, "", 1_000, false),
                    (2, B, "", 1_500, false),
                    (2, B, "", 1_999, false),
                    (2, B, "", 2_000, true),
                ],
            ),
            (
                "two of which neither decides by the earlier rules any more",
                &[
                    (2, A, "", 0, false),
                    (1, B, "", 100, false),
                    (2, C, "", 200, false),
                    (1, B, "", 2_100, true),
                ],
            ),
        ] {
            let mut updates = running(A);
            // Nobody has answered for long.
            updates.sidecars.iter_mut().for_each(|one| one.at_us = 0);
            for (instance, digest, earlier, at_ms, replaces) in steps {
                let at_us = 10 * S + at_ms * 1_000;
                let may = updates.named(digest, earlier, *instance, at_us);
                assert_eq!(may, *replaces, "{what}: {instance} {digest} at {at_ms}");
            }
        }
    }

    #[test]
    fn rules_that_all_can_decide_are_wanted_whichever_sidecar_answers_last() {
        let mut updates = running(A);
        for (instance, digest, earlier, wants) in [
            (1, A, "bbbbbb", false),
            (2, B, "", true),
            (1, A, "bbbbbb", true),
        ] {
            updates.named(digest, earlier, instance, 10 * S);
            assert_eq!(updates.wants(10 * S), wants, "{instance}");
        }
    }

    #[test]
    fn refused_rules_are_not_fetched_again_until_others_are_named() {
        let mut updates = running(A);
        assert!(updates.named(B, "", 1, S));
        updates.refuse(B.to_owned(), &"é".repeat(16_384));
        assert_eq!(updates.refused(), Some((B, "é".repeat(500).as_str())));
        assert!(!updates.named(B, "", 1, S));
        assert!(updates.named(C, "", 1, S), "others may replace them");
        assert!(!updates.named(A, "", 1, S), "the old file is back");
        assert_eq!(updates.refused(), None);
    }

    #[test]
    fn each_of_many_sidecars_counts_however_seldom_it_is_asked() {
        // How often a filter without requests may report: each second tick.
        const EVERY: u64 = S + 5_000;
        for sidecars in 2..=8 {
            let mut updates = running(A);
            for turn in 1..=60 {
                let (instance, now_us) = (turn % sidecars, turn * EVERY);
                let digest = if instance == 0 { B } else { A };
                assert!(!updates.named(digest, "aaaaaa", instance, now_us));
                let is_held = updates.held(now_us + EVERY - 1).is_some();
                assert_eq!(is_held, turn >= sidecars, "{sidecars}: {turn}");
            }
            // Then they have the others too.
            let mut replaces = (61..61 + sidecars)
                .map(|turn| updates.named(B, "aaaaaa", turn % sidecars, turn * EVERY));
            assert!(replaces.any(|may| may), "{sidecars}");
        }
    }

    #[test]
    fn the_sidecar_that_holds_rules_back_is_known() {
        let mut updates = running(A);
        updates.named(A, "", 2, S);
        assert!(updates.behind_us.is_none());
        updates.named(B, "aaaaaa", 1, S);
        assert!(updates.behind_us.is_some() && updates.reports_often());
        assert_eq!(updates.held(S), Some((B, 2)));
        assert_eq!(updates.held(9 * S), Some((B, 2)), "nobody answers any more");
        updates.refuse(B.to_owned(), "why");
        assert_eq!(updates.held(S), None);
    }

    #[test]
    fn each_sidecar_that_answers_is_told_of_each_change_and_one_that_is_gone_is_not_waited_for() {
        let mut updates = running(A);
        updates.named(A, "", 2, S);
        updates.told(1, updates.revision());
        assert!(updates.reports_often(), "the second does not know");
        updates.told(2, updates.revision());
        assert!(!updates.reports_often());
        // Both have others, then one is gone.
        let before = updates.revision();
        updates.named(B, "aaaaaa", 2, S);
        updates.replaced(B.to_owned());
        updates.told(1, before);
        updates.told(2, updates.revision());
        assert!(updates.is_untold(), "an earlier report does not count");
        for _ in 0..MAX_MISSED {
            updates.named(B, "", 2, 9 * S);
        }
        assert!(updates.is_untold(), "nothing is held back any more");
        updates.told(2, updates.revision());
        assert!(!updates.reports_often(), "the other one is forgotten");
        // It was behind, and is not any more.
        updates.named(C, "bbbbbb", 2, 9 * S);
        updates.named(B, "", 2, 9 * S);
        assert!(updates.is_untold());
    }

    #[test]
    fn a_second_sidecar_counts_for_two_seconds() {
        let mut updates = running(A);
        updates.named(A, "", 1, 10 * S);
        assert!(updates.has_one_sidecar(10 * S));
        updates.named(A, "", 2, 11 * S);
        assert!(!updates.has_one_sidecar(12 * S - 1) && updates.has_one_sidecar(12 * S));
    }

    #[test]
    fn sidecars_that_restart_often_are_forgotten() {
        let mut updates = running(A);
        for instance in 2..1_000 {
            assert!(!updates.named(A, "", instance, S));
        }
        assert_eq!(updates.sidecars.len(), MAX_SIDECARS);
        for _ in 0..=MAX_MISSED {
            updates.named(A, "", 999, 4 * S);
        }
        assert_eq!(updates.sidecars.len(), 1);
        assert!(updates.named(B, "aaaaaa", 999, 4 * S));
    }

    /// Envoy takes the sidecars in turn. With each request there is a report, and one each half second.
    #[test]
    fn a_worker_without_traffic_asks_each_of_its_sidecars_for_rules() {
        for sidecars in 1..=8 {
            for wanted in 0..sidecars {
                let (mut updates, mut turn) = (Updates::default(), 0);
                let reaches = (1..25).find(|_| {
                    updates.sent(0);
                    let asked = turn % sidecars;
                    turn += 2 + updates.gives_up_after_us() / 500_000;
                    asked == wanted
                });
                assert!(reaches.is_some(), "sidecar {wanted} of {sidecars}");
            }
        }
    }

    /// Two sidecars in turn, of which one is not there, and another callout in each pause.
    #[test]
    fn a_sidecar_that_is_not_there_does_not_keep_an_idle_worker_from_the_other() {
        for first in [0, 1] {
            let (mut updates, mut turn, mut now_us) = (Updates::default(), first, 0);
            let mut reached = false;
            for _ in 0..4 {
                now_us += RETRY_US;
                while updates.is_due(now_us) && !reached {
                    updates.sent(now_us);
                    reached = turn % 2 == 0;
                    updates.failed(now_us);
                    turn += 1;
                }
                turn += 1;
            }
            assert!(reached, "{first}");
        }
    }

    #[test]
    fn requests_are_not_sent_in_a_loop() {
        let mut updates = Updates::default();
        assert!(updates.is_due(0));
        updates.sent(0);
        assert!(!updates.is_due(RETRY_US - 1) && updates.is_due(RETRY_US));
    }
}
