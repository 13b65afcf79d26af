//! Settles receipts, resets limits, and peeks at them by the digits of keys.

use std::collections::BTreeMap;
use std::time::Instant;

use sluicegate_engine::{Done, Settlements};
use sluicegate_protocol::{
    Answer, Code, DECISIONS, Decision, Listed, Problem, RESETS, Read, Reset, SETTLES, Settle,
    Settled, Verdict, WasReset,
};

use super::Service;
use crate::clock;
use crate::decide::buckets::buckets;
use crate::decide::effective::EffectiveCheck;
use crate::decide::in_flight::Reserved;
use crate::decide::receipts::{self, Receipt};
use crate::lock::lock;
use crate::telemetry::verdict::{Decided, Source};

impl Service {
    /// Settles receipts; an outcome for each entry. `vm`: the filter that asks, if it says so.
    pub async fn settle(
        &self,
        asked: &[Result<Settle<'_>, Problem>],
        vm: Option<u128>,
    ) -> Listed<Settled> {
        let epoch = self.policy.current();
        let asked = epoch.policy.renamed(asked, |entry| {
            if let Ok(entry) = entry {
                epoch.policy.rename(&mut entry.limit, &mut entry.key);
            }
        });
        let overrides = epoch.overrides.at(clock::unix_ms());
        let (mut settlements, mut renewals) = (Settlements::default(), Vec::new());
        let read = asked.iter().enumerate().map(|(index, asked)| {
            let entry = asked.as_ref().map_err(Problem::clone)?;
            let settled = receipts::settle(
                &epoch.policy,
                overrides,
                entry,
                &mut settlements,
                &mut renewals,
            );
            let receipt = settled.map_err(|problem| problem.of_entry(SETTLES, index))?;
            Ok((entry, receipt))
        });
        let read: Vec<Result<_, Problem>> = read.collect();
        let (done, renewed) = tokio::join!(
            self.backend.settle_receipts(settlements),
            self.backend.renew(&renewals)
        );
        let (mut done, mut renewed) = (done.into_iter(), renewed.into_iter().flatten());
        let (mut void, mut slots) = (Vec::new(), Vec::new());
        let outcomes = read.into_iter().map(|entry| match entry {
            Err(problem) => Settled::Error(problem),
            Ok((asked, None)) => {
                let settled = match renewed.next() {
                    None => Settled::Unavailable,
                    Some(false) => Settled::Unknown,
                    Some(true) => Settled::Renewed,
                };
                self.note_reserve_settled(asked, &settled, vm.is_some());
                settled
            }
            Ok((asked, Some(receipt))) => {
                let done = done.next().flatten();
                let settled = match done {
                    None => Settled::Unavailable,
                    Some(_) if asked.within_ms.is_some() => Settled::Renewed,
                    Some(Done::Nothing) => Settled::Unknown,
                    Some(Done::Returned(units)) => Settled::Returned { units },
                    Some(Done::Added(units)) => Settled::Charged { units },
                };
                let (limit, key) = (asked.limit.as_ref(), asked.key.as_ref());
                if !matches!(
                    settled,
                    Settled::Unknown | Settled::Renewed | Settled::Returned { units: 0 }
                ) {
                    void.push((limit, key));
                }
                match receipt {
                    Receipt::Slots(id) => slots.push((asked, id, done)),
                    Receipt::Hold(_) => {
                        self.note_reserve_settled(asked, &settled, vm.is_some());
                        let now_us = clock::now_us();
                        epoch.metrics.count_settled(asked, &settled, now_us);
                    }
                }
                settled
            }
        });
        let outcomes = outcomes.collect();
        self.denials.void(void);
        for (asked, id, done) in slots {
            self.note_settled(&epoch, asked, id, done, vm);
        }
        Listed { outcomes }
    }

    /// Notes what decisions have reserved that the store admitted: what a share admits has no receipts of units.
    pub(super) fn note_reserved(
        &self,
        reserves: &[(usize, u128, EffectiveCheck<'_>)],
        decided: &[Decided],
    ) {
        for (decision, secret, check) in reserves {
            if let Some(decided) = decided.get(*decision)
                && decided.source == Source::Store
                && let Verdict::Admitted(_) = decided.verdict
            {
                let ends_us = clock::now_us().saturating_add(check.within_us.unwrap_or(0));
                lock(&self.in_flight).note(*secret, check.limit, check.cost, ends_us);
            }
        }
    }

    /// Notes that units of a hold were settled, or that their stream lives. Who keeps all lets the hold end in a moment.
    fn note_reserve_settled(&self, asked: &Settle<'_>, settled: &Settled, by_filter: bool) {
        let Some(Receipt::Hold(secret)) = Receipt::read(&asked.receipt) else {
            return;
        };
        let (now_us, mut in_flight) = (clock::now_us(), lock(&self.in_flight));
        match (settled, asked.within_ms) {
            (Settled::Renewed, Some(within_ms)) if within_ms > 1 => {
                in_flight.renew(
                    secret,
                    now_us.saturating_add(within_ms.saturating_mul(1_000)),
                );
            }
            (Settled::Unavailable | Settled::Error(_), _) => {}
            // What was settled before may be settled again: that is unknown.
            _ => in_flight.settle(secret, by_filter && *settled != Settled::Unknown, now_us),
        }
    }

    /// What is reserved and not settled yet, by limits.
    pub fn reserved(&self) -> BTreeMap<String, Reserved> {
        lock(&self.in_flight).of_limits(clock::now_us())
    }

    /// Remembers denied keys by the digits that Envoy's access log shows, which are those of the keys that its filter sent.
    pub(super) fn know_denied(
        &self,
        decided: &[Decided],
        asked: &[Result<Decision<'_>, Problem>],
        sent: &[Result<Decision<'_>, Problem>],
    ) {
        for ((decided, asked), sent) in decided.iter().zip(asked).zip(sent) {
            if let (Verdict::Denied(status), Ok(asked), Ok(sent)) = (&decided.verdict, asked, sent)
                && let Some(check) = asked.checks.get(status.check)
                && let Some(sent) = sent.checks.get(status.check)
                && check.key != sent.key
            {
                self.metrics.know_as(&sent.key, &check.key);
            }
        }
    }

    /// The key with these digits. No answer contains it.
    fn key_of(&self, digits: &str) -> Result<String, Problem> {
        let why = "no key with these 20 digits was denied, or near a limit, on this sidecar lately: ask the one whose `top` shows them, or behind the Envoy whose access log does";
        let key = self.metrics.key_of(digits);
        key.ok_or_else(|| Problem::new(Code::NotFound, why).at("subject"))
    }

    /// Peeks at the remaining units of keys, which are named by their digits.
    pub async fn peek(&self, asked: Read<'_>) -> Answer<'static> {
        let decisions = asked.decisions.into_iter().enumerate();
        let decisions = decisions.map(|(index, decision)| {
            let mut decision = decision?;
            (decision.peek, decision.receipt) = (true, false);
            for (place, check) in decision.checks.iter_mut().enumerate() {
                let key = self.key_of(&check.key);
                let at = format_args!("checks[{place}].key");
                let key = key.map_err(|problem| problem.at(at).of_entry(DECISIONS, index))?;
                check.key = key.into();
            }
            Ok(decision)
        });
        let decisions = decisions.collect();
        let peeks = Read {
            decisions,
            denied: Vec::new(),
            settles: Vec::new(),
            wait_ms: 0,
        };
        self.decide(&peeks, |_| None).await
    }

    /// Restores the whole quota of limits and keys; an outcome for each entry.
    pub async fn reset(&self, asked: &[Result<Reset<'_>, Problem>]) -> Listed<WasReset> {
        let epoch = self.policy.current();
        let asked = asked.iter().enumerate().map(|(index, entry)| {
            let mut entry = entry.clone()?;
            if let Some(digits) = &entry.subject {
                let key = self.key_of(digits);
                entry.key = key
                    .map_err(|problem| problem.of_entry(RESETS, index))?
                    .into();
            }
            epoch.policy.rename(&mut entry.limit, &mut entry.key);
            Ok(entry)
        });
        let asked: Vec<Result<_, Problem>> = asked.collect();
        let deadline = Instant::now() + self.store.timeout() * 2;
        let overrides = epoch.overrides.at(clock::unix_ms());
        let mut outcomes = Vec::with_capacity(asked.len());
        let mut void = Vec::new();
        for (index, asked) in asked.iter().enumerate() {
            let wanted = asked.as_ref().map_err(Problem::clone);
            let wanted = wanted.and_then(|asked| {
                let buckets = buckets(&epoch.policy, overrides, &asked.limit, &asked.key);
                let buckets = buckets.map_err(|problem| problem.of_entry(RESETS, index))?;
                Ok((asked, buckets))
            });
            let outcome = match wanted {
                Err(problem) => WasReset::Error(problem),
                // A store that hangs is waited for once, not for every entry.
                Ok(_) if Instant::now() > deadline => WasReset::Unavailable,
                Ok((asked, buckets)) => {
                    void.push((asked.limit.as_ref(), asked.key.as_ref()));
                    let at_once = buckets.iter().any(|bucket| bucket.spec.has_slots());
                    let keys: Vec<_> = buckets.into_iter().map(|bucket| bucket.key).collect();
                    let held = self.backend.reset(&keys).await;
                    held.map_or(WasReset::Unavailable, |held| WasReset::Reset {
                        held: held.contains(&true),
                        at_once,
                    })
                }
            };
            outcomes.push(outcome);
        }
        self.leases.end(&void);
        self.denials.void(void);
        Listed { outcomes }
    }
}
