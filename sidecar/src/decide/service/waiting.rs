//! Decisions that wait for a slot.

use std::collections::BTreeMap;
use std::time::Duration;

use sluicegate_protocol::{Answer, Decision, Problem, Read, UNKNOWN_HEADER, VM_HEADER, Verdict};
use tokio::time::Instant;

use super::Service;
use crate::clock;
use crate::decide::holds::read_vm;
use crate::decide::slots::Waits;
use crate::decide::unclaimed::Unclaimed;
use crate::telemetry::verdict::{Decided, Source};

impl Service {
    /// Makes decisions. `header` returns the request's headers or metadata by lower-case name.
    pub async fn decide<'h>(
        &self,
        request: &Read<'_>,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Answer<'static> {
        if !request.settles.is_empty() {
            let settles: Vec<_> = request.settles.iter().cloned().map(Ok).collect();
            self.settle(&settles, header(VM_HEADER).and_then(read_vm))
                .await;
        }
        if request.wait_ms == 0 {
            let (answer, granted) = self.decide_now(request, header).await;
            granted.told();
            return answer;
        }
        // On the heap, because most requests do not wait.
        Box::pin(self.decide_when_free(request, header)).await
    }

    async fn decide_when_free<'h>(
        &self,
        request: &Read<'_>,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Answer<'static> {
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        // From before the first answer, so that nothing that is freed after it is missed.
        let decisions = request.decisions.iter().enumerate();
        let waits = decisions.flat_map(|(number, one)| {
            let waits = self.waits(one).into_iter();
            waits.map(move |waits| (number, waits))
        });
        let waits: Vec<_> = waits.collect();
        let (mut answer, granted) = self.decide_now(request, &header).await;
        // If whoever asked gives up while others wait, they are freed.
        let mut granted = vec![granted];
        let mut waited = BTreeMap::new();
        loop {
            let mut still = Vec::new();
            for (number, waits) in &waits {
                let verdict = answer.verdicts.get(*number);
                let denied = verdict.filter(|verdict| verdict.is_denied_by_slots());
                if let Some(Verdict::Denied(status)) = denied {
                    waited.insert(*number, status.limit.to_string());
                    still.push((*number, Box::pin(waits.freed(until))));
                }
            }
            if still.is_empty() {
                break;
            }
            let (numbers, freed): (Vec<_>, Vec<_>) = still.into_iter().unzip();
            let (freed, index, _) = futures_util::future::select_all(freed).await;
            let (true, Some(number)) = (freed, numbers.get(index).copied()) else {
                break;
            };
            let again = request.decisions.get(number).cloned();
            let again = Read {
                decisions: again.into_iter().collect(),
                denied: Vec::new(),
                settles: Vec::new(),
                wait_ms: request.wait_ms,
            };
            let names = |name: &str| {
                let is_same = [UNKNOWN_HEADER, VM_HEADER].contains(&name);
                is_same.then(|| header(name))?
            };
            let (mut next, more) = self.decide_now(&again, names).await;
            granted.push(more);
            if let (Some(next), Some(verdict)) =
                (next.verdicts.pop(), answer.verdicts.get_mut(number))
            {
                *verdict = next;
            }
        }
        drop(waits);
        granted.into_iter().for_each(Unclaimed::told);
        let epoch = self.policy.current();
        for (number, limit) in waited {
            if let (Some(slots), Some(verdict)) =
                (epoch.metrics.slots(&limit), answer.verdicts.get(number))
            {
                slots.count_wait(matches!(verdict, Verdict::Admitted(_)));
            }
        }
        self.count_denied_by_slots(request, &answer);
        answer
    }

    /// What a decision waits for.
    fn waits(&self, decision: &Result<Decision<'_>, Problem>) -> Vec<Waits<'_>> {
        let Some(decision) = decision.as_ref().ok().filter(|one| !one.peek) else {
            return Vec::new();
        };
        let policy = &self.policy.current().policy;
        let checks = decision.checks.iter().filter_map(|check| {
            let (mut limit, mut key) = (check.limit.clone(), check.key.clone());
            policy.rename(&mut limit, &mut key);
            policy.limit(&limit)?.expire_us()?;
            Some(self.slots.wait(&limit, &key))
        });
        checks.collect()
    }

    /// Counts denials that were not counted before, since they might have become admissions.
    fn count_denied_by_slots(&self, request: &Read<'_>, answer: &Answer<'static>) {
        let epoch = self.policy.current();
        for (asked, verdict) in request.decisions.iter().zip(&answer.verdicts) {
            if let (Ok(asked), true) = (asked, verdict.is_denied_by_slots()) {
                let decided = Decided::by(Source::Store, verdict.clone());
                epoch.metrics.count(&decided, Some(asked), clock::now_us());
            }
        }
    }
}
