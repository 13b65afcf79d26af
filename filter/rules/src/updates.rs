//! When to fetch the rules that the sidecar pushes, and which of them to put in force.
//!
//! A filter has a request for rules at the sidecar nearly always: the sidecar answers when it has others than the filter
//! knows. Besides, each answer to a question names the digest of the rules in force. Sidecars behind one cluster may have
//! different policies, for a while or by mistake; then a filter keeps what it has as long as anyone names that.

/// How long nobody must have named the digest in force until rules of another sidecar replace it.
const FORGOTTEN_US: u64 = 2_000_000;
/// How long to wait after a request that failed, or that was answered at once.
const RETRY_US: u64 = 500_000;
/// Longest reason that is kept, in characters: it is sent in a header.
const MAX_WHY: usize = 500;
/// Most sidecars that are remembered: the latest.
const MAX_INSTANCES: usize = 64;

/// Which rules are in force, and who names them.
#[derive(Debug, Default)]
pub struct Updates {
    in_force: Option<String>,
    /// The sidecars that have named them.
    named_by: Vec<u64>,
    named_us: u64,
    /// The newest digest that could not be used, and why.
    refused: Option<(String, String)>,
    /// When to send the next request.
    next_us: u64,
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

    /// The digest that the sidecar need not send again.
    pub fn known(&self) -> Option<&str> {
        let refused = self.refused().map(|(digest, _)| digest);
        refused.or_else(|| self.in_force())
    }

    /// Whether to send a request now, if none is under way.
    pub const fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// A request has been sent.
    pub const fn sent(&mut self, now_us: u64) {
        self.next_us = now_us.saturating_add(RETRY_US);
    }

    /// The answer was no document: the next request waits longer, since this one may have been large.
    pub const fn unusable(&mut self, now_us: u64) {
        self.next_us = now_us.saturating_add(RETRY_US * 10);
    }

    /// A sidecar names a digest. Returns whether its rules may replace those in force.
    pub fn named(&mut self, digest: &str, instance: u64, now_us: u64) -> bool {
        let known_by = self.named_by.contains(&instance);
        if self.in_force() == Some(digest) {
            self.named_us = now_us;
            if !known_by {
                // Each restart of a sidecar is another instance.
                let surplus = (self.named_by.len() + 1).saturating_sub(MAX_INSTANCES);
                self.named_by.drain(..surplus);
                self.named_by.push(instance);
            }
            // The old file is back.
            if known_by {
                self.refused = None;
            }
            return false;
        }
        let is_refused = self.refused().is_some_and(|(refused, _)| refused == digest);
        let forgotten = now_us.saturating_sub(self.named_us) >= FORGOTTEN_US;
        !is_refused && (self.in_force.is_none() || known_by || forgotten)
    }

    /// These rules are in force now.
    pub fn replaced(&mut self, digest: String, instance: u64, now_us: u64) {
        *self = Self {
            in_force: Some(digest),
            named_by: vec![instance],
            named_us: now_us,
            refused: None,
            next_us: now_us,
        };
    }

    /// These cannot be used.
    pub fn refuse(&mut self, digest: String, why: &str) {
        self.refused = Some((digest, why.chars().take(MAX_WHY).collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn running(digest: &str) -> Updates {
        let mut updates = Updates::default();
        assert!(updates.named(digest, 1, 0));
        updates.replaced(digest.to_owned(), 1, 0);
        updates
    }

    #[test]
    fn the_sidecar_that_named_the_rules_in_force_may_replace_them_at_once() {
        let mut updates = running("a");
        assert!(!updates.named("a", 1, 1));
        assert!(updates.named("b", 1, 2));
    }

    #[test]
    fn another_sidecar_may_only_when_nobody_has_named_them_for_two_seconds() {
        let mut updates = running("a");
        for second in 1..100 {
            assert!(!updates.named("b", 2, second * S));
            assert!(!updates.named("a", 1, second * S));
        }
        assert!(!updates.named("b", 2, 100 * S));
        assert!(updates.named("b", 2, 101 * S));
    }

    #[test]
    fn refused_rules_are_not_fetched_again_until_others_are_named() {
        let mut updates = running("a");
        assert!(updates.named("b", 1, S));
        updates.refuse("b".to_owned(), &"é".repeat(16_384));
        assert_eq!(updates.refused(), Some(("b", "é".repeat(500).as_str())));
        assert_eq!(updates.known(), Some("b"));
        assert!(!updates.named("b", 1, S));
        assert!(updates.named("c", 1, S), "others may replace them");
        assert!(!updates.named("a", 1, S), "the old file is back");
        assert_eq!((updates.known(), updates.refused()), (Some("a"), None));
    }

    #[test]
    fn a_sidecar_that_has_restarted_often_may_still_replace_them_at_once() {
        let mut updates = running("a");
        for instance in 2..1_000 {
            assert!(!updates.named("a", instance, S));
        }
        assert!(updates.named("b", 999, S));
        assert!(!updates.named("b", 1, S), "that was long ago");
        assert_eq!(updates.named_by.len(), MAX_INSTANCES);
    }

    #[test]
    fn requests_are_not_sent_in_a_loop() {
        let mut updates = Updates::default();
        assert!(updates.is_due(0));
        updates.sent(0);
        assert!(!updates.is_due(RETRY_US - 1) && updates.is_due(RETRY_US));
    }
}
