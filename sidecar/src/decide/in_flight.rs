//! What requests have reserved through this sidecar and not settled yet, for operators: in bounded memory, without keys. Pure: time
//! comes as an argument, in microseconds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use crate::policy::Limit;

/// Most that are known.
const MAX_RESERVES: usize = 100_000;
/// For how long a settle of what another sidecar granted shows that others settle what this one did.
const ELSEWHERE_FOR_US: u64 = 600_000_000;

/// Reserves by the secrets of their receipts.
#[derive(Debug, Default)]
pub struct InFlight {
    by_secret: HashMap<u128, Reserve>,
    /// Until when others are taken to settle, too.
    elsewhere_until_us: u64,
}

#[derive(Debug)]
struct Reserve {
    limit: Arc<Limit>,
    units: u64,
    /// When the receipt ends without a sign of its stream.
    ends_us: u64,
}

/// The reserves of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reserved {
    requests: u64,
    units: u64,
    /// Some may have been settled through other sidecars.
    at_most: bool,
}

impl InFlight {
    /// Units were reserved.
    pub fn note(&mut self, secret: u128, limit: &Arc<Limit>, units: u64, ends_us: u64) {
        if self.by_secret.len() < MAX_RESERVES {
            let limit = Arc::clone(limit);
            let reserve = Reserve {
                limit,
                units,
                ends_us,
            };
            self.by_secret.insert(secret, reserve);
        }
    }

    /// Their stream lives, so that the receipt does until then.
    pub fn renew(&mut self, secret: u128, ends_us: u64) {
        if let Some(reserve) = self.by_secret.get_mut(&secret) {
            reserve.ends_us = ends_us;
        }
    }

    /// They were settled. `by_filter`: such a receipt was granted with a reserve, here or elsewhere.
    pub fn settle(&mut self, secret: u128, by_filter: bool, now_us: u64) {
        if self.by_secret.remove(&secret).is_none() && by_filter {
            self.elsewhere_until_us = now_us.saturating_add(ELSEWHERE_FOR_US);
        }
    }

    /// Forgets those whose receipts have ended.
    pub fn forget_ended(&mut self, now_us: u64) {
        self.by_secret.retain(|_, reserve| now_us < reserve.ends_us);
    }

    /// Those of each limit that has some.
    pub fn of_limits(&self, now_us: u64) -> BTreeMap<String, Reserved> {
        let mut limits: BTreeMap<String, Reserved> = BTreeMap::new();
        let living = self.by_secret.values();
        for reserve in living.filter(|reserve| now_us < reserve.ends_us) {
            let of = limits.entry(reserve.limit.name.clone()).or_default();
            of.requests += 1;
            of.units = of.units.saturating_add(reserve.units);
            of.at_most = now_us < self.elsewhere_until_us;
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn reserves_are_in_flight_until_they_are_settled_or_their_receipt_has_ended() {
        let policy = "limits: { l: { algorithm: sliding_log, windows: [{ quota: 9, per: 1h }] } }";
        let policy = Policy::parse(policy).unwrap();
        let limit = policy.limit("l").unwrap();
        let mut reserves = InFlight::default();
        for (secret, ends_us) in [(1, 10), (2, 20), (3, 30)] {
            reserves.note(secret, limit, 5, ends_us);
        }
        let told = |reserves: &InFlight, now_us| {
            let of = reserves.of_limits(now_us).remove("l").unwrap_or_default();
            (of.requests, of.units, of.at_most)
        };
        assert_eq!(told(&reserves, 9), (3, 15, false));
        assert_eq!(told(&reserves, 10), (2, 10, false));
        reserves.renew(1, 15);
        assert_eq!(told(&reserves, 10), (3, 15, false));
        reserves.settle(1, true, 10);
        reserves.settle(4, false, 10);
        assert_eq!(told(&reserves, 10), (2, 10, false));
        // One that another sidecar has granted: it may settle what this one did.
        reserves.settle(4, true, 10);
        assert_eq!(told(&reserves, 10), (2, 10, true));
        reserves.forget_ended(20);
        assert_eq!(reserves.by_secret.len(), 1);
        reserves.renew(3, u64::MAX);
        assert_eq!(told(&reserves, 10 + ELSEWHERE_FOR_US), (1, 5, false));
    }
}
