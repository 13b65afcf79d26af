//! Other users of the store: sidecars with other limits, and fleets with other key prefixes.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Service;
use crate::telemetry::subject::Subject;

/// How often to ask the store.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(60);
/// Other limits under the same prefix are reported after this time: until then, a new policy may not have reached all sidecars.
const DIFFER_AFTER: Duration = Duration::from_secs(600);

/// The other fleets that the store's lists show, and what was reported of them.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// The digest of this sidecar's own limits.
    own: String,
    /// Since when there have been other limits.
    differ_since: Option<Instant>,
    reported_limits: bool,
    reported_prefixes: u64,
}

impl Neighbours {
    /// Notes how many other limits and key prefixes there are. Returns whether to report each.
    fn note(&mut self, now: Instant, (limits, prefixes): (u64, u64)) -> (bool, bool) {
        let since = *self.differ_since.get_or_insert(now);
        if limits == 0 {
            (self.differ_since, self.reported_limits) = (None, false);
        }
        let differ = limits > 0 && now.duration_since(since) > DIFFER_AFTER;
        let report_limits = differ && !std::mem::replace(&mut self.reported_limits, differ);
        let report_prefixes = prefixes > std::mem::replace(&mut self.reported_prefixes, prefixes);
        (report_limits, report_prefixes)
    }
}

impl Service {
    /// Registers this fleet in the store, and reports others. Does nothing if the store does not permit it.
    pub(super) async fn check_neighbours(&self, neighbours: &mut Neighbours) {
        let limits = Subject::of(&self.policy.current().policy.limits_text()).to_string();
        let Ok(others) = self.store.enter_fleet(&limits, &neighbours.own).await else {
            return;
        };
        neighbours.own = limits;
        self.metrics.set_neighbours(others);
        let (report_limits, report_prefixes) = neighbours.note(Instant::now(), others);
        if report_limits {
            warn!(
                "sidecars with other limits use the same Redis and `key_prefix`, and divide the shares of these: give each fleet \
                 a `key_prefix` of its own, or bring all sidecars to one policy (docs/redis.md, \"Several fleets\")"
            );
        }
        if report_prefixes {
            info!(
                others = others.1,
                "other key prefixes are in use on this Redis (docs/redis.md, \"Several fleets\")"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_limits_are_reported_once_after_ten_minutes_and_other_prefixes_at_once() {
        let (mut neighbours, begin) = (Neighbours::default(), Instant::now());
        let mut note = |minutes: u64, others| {
            neighbours.note(begin + Duration::from_secs(60 * minutes), others)
        };
        assert_eq!(note(0, (0, 1)), (false, true));
        assert_eq!(note(1, (1, 1)), (false, false), "a rollout");
        assert_eq!(note(11, (1, 1)), (false, false), "for ten minutes");
        assert_eq!(note(12, (1, 2)), (true, true));
        assert_eq!(note(13, (1, 0)), (false, false));
        assert_eq!(note(14, (0, 0)), (false, false));
        assert_eq!(note(15, (1, 0)), (false, false), "another rollout");
        assert_eq!(note(26, (1, 0)), (true, false));
    }
}
