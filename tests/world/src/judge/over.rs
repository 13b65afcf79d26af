//! Never over: what was admitted in every window, and in every token bucket.

use super::{Bucket, Claim, Judge, MS, SOON, Use, meets, secs};
use crate::script::Algorithm;

impl Judge<'_> {
    pub(super) fn over_window(
        &self,
        bucket: Bucket,
        uses: &[Use],
        claims: &[Claim],
        requests: Option<u64>,
    ) -> Option<String> {
        let per = bucket.per_ms * MS;
        let aligned = matches!(bucket.algorithm, Algorithm::Fixed | Algorithm::Day(_));
        // A quota that came with the request.
        let own = |one: &Use| one.quota.filter(|_| requests.is_some()).unwrap_or(0);
        let certain: Vec<&Use> = uses.iter().filter(|one| one.certain).collect();
        for (last, one) in certain.iter().enumerate() {
            let (mut units, mut since, mut quota) = (0, one.to, own(one));
            if aligned {
                // Both ends of the last use in one window, or nobody knows which.
                let window = self.window_of(bucket, self.clock(one.to));
                if self.window_of(bucket, self.clock(one.from)) != window {
                    continue;
                }
                for other in certain[..=last].iter().rev() {
                    let inside = |at| self.window_of(bucket, self.clock(at)) == window;
                    if inside(other.from) && inside(other.to) {
                        units += other.units;
                        since = since.min(other.from);
                        quota = quota.max(own(other));
                    } else if self.clocks.is_empty() && other.to + 2 * per < one.from {
                        break;
                    }
                }
            } else {
                let ends = self.trailing(one.to);
                for other in certain[..=last].iter().rev() {
                    if self.trailing(other.from) + per <= ends {
                        if self.trailing(other.to) + per + SOON <= ends {
                            break;
                        }
                        continue;
                    }
                    units += other.units;
                    since = since.min(other.from);
                    quota = quota.max(own(other));
                }
            }
            let span = (since, one.to);
            let in_force = claims
                .iter()
                .filter(|claim| meets((claim.from, claim.to), span));
            let quota = in_force
                .map(|claim| claim.quota)
                .max()
                .unwrap_or(0)
                .max(quota.min(requests.unwrap_or(0)));
            let steps = self
                .clocks
                .iter()
                .filter(|(at, by)| aligned && *by < 0 && meets((*at, *at), span))
                .count() as u64;
            let allowed = quota.saturating_mul(1 + steps + self.once_more(bucket, span));
            let allowed = allowed.saturating_add(self.leased_at_steps(bucket, uses, span));
            if units > allowed {
                return Some(format!(
                    "{bucket:?}: {units} of {allowed} (quota {quota}) in {:.3} to {:.3} s",
                    secs(span.0),
                    secs(span.1)
                ));
            }
        }
        None
    }

    /// What leases may have held when the clock stepped: as much as was asked for in twice their length.
    fn leased_at_steps(&self, bucket: Bucket, uses: &[Use], span: (u64, u64)) -> u64 {
        if !self.limits(bucket.limit).any(|(_, of)| of.leases) {
            return 0;
        }
        let steps = self
            .clocks
            .iter()
            .filter(|(at, _)| meets((*at, *at), (span.0.saturating_sub(SOON), span.1 + SOON)));
        let held = |(at, _): &(u64, i64)| {
            let near = (at.saturating_sub(1_000_000), at + 1_000_000);
            let near = uses.iter().filter(|one| meets((one.from, one.to), near));
            near.map(|one| one.taken).sum::<u64>()
        };
        steps.map(held).sum()
    }

    pub(super) fn over_token(
        &self,
        bucket: Bucket,
        uses: &[Use],
        claims: &[Claim],
        requests: Option<u64>,
    ) -> Option<String> {
        let per = bucket.per_ms * MS;
        // In units times the window's length; since when it holds something.
        let (mut level, mut at, mut since, mut before) = (0_u128, 0_u64, 0_u64, 0_u64);
        for one in uses.iter().filter(|one| one.certain) {
            let now = self.trailing(one.to);
            let span = (since, one.to);
            let in_force = claims
                .iter()
                .filter(|claim| meets((claim.from, claim.to), span));
            let (mut quota, mut burst) = (0, 0);
            for claim in in_force {
                (quota, burst) = (quota.max(claim.quota), burst.max(claim.burst));
            }
            if let Some(up_to) = requests {
                // A request's quota scales the burst.
                let of = claims.iter().map(|claim| {
                    (claim.burst * up_to.max(claim.quota)).div_ceil(claim.quota.max(1))
                });
                (quota, burst) = (quota.max(up_to), burst.max(of.max().unwrap_or(0)));
            }
            if quota == u64::MAX {
                (level, at, since) = (0, now, one.to);
                continue;
            }
            // While shares decide, what flows back does so in the store as well.
            let twice: u64 = self
                .outages
                .iter()
                .map(|(from, to)| (*to).min(one.to).saturating_sub((*from).max(before)))
                .sum();
            before = one.to;
            // A step while calls are under way comes before them or after.
            let step = self
                .clocks
                .iter()
                .filter(|(when, by)| *by > 0 && meets((*when, *when), (one.from, one.to)));
            let twice = twice + step.map(|(_, by)| by.unsigned_abs()).sum::<u64>();
            level = level.saturating_sub(u128::from(now - at + twice) * u128::from(quota));
            if level == 0 {
                since = one.from;
            }
            at = now;
            level += u128::from(one.units) * u128::from(per);
            let allowed =
                u128::from(burst) * u128::from(1 + self.once_more(bucket, span)) * u128::from(per);
            // What calls took to come back has drained; what was leased may be spent half a second later, and has drained as well.
            let leases = self.limits(bucket.limit).any(|(_, of)| of.leases);
            let later = one.to - one.from + if leases { 500 * MS } else { 0 };
            let slack = u128::from(later) * u128::from(quota);
            if level > allowed + slack {
                let units = level / u128::from(per);
                return Some(format!(
                    "{bucket:?}: holds {units} of {burst}, {quota} per {} ms, since {:.3}, at {:.3} s",
                    bucket.per_ms,
                    secs(since),
                    secs(one.to)
                ));
            }
        }
        None
    }
}
