//! What happens in a world of sidecars with leases, event by event.

use sluicegate_engine::lease::{Grant, Pool, reserve};
use sluicegate_engine::{Batch, Decision, Outcome, Receipt, Return, Returns, Take, receipt_key};

use super::lease_world::{MS, Run, SECOND, SIDECARS, TERMS};

impl Run<'_> {
    pub fn random(&mut self, below: u64) -> u64 {
        // xorshift: the world's seed decides all of it.
        self.number += 1;
        let mut x = self.world.seed ^ self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 30;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^= x >> 27;
        x % below
    }

    /// Plans what happens whoever crashes meanwhile.
    pub fn later(&mut self, in_us: u64, event: impl FnOnce(&mut Run<'_>) + 'static) {
        self.number += 1;
        let at = (self.now + in_us, self.number);
        self.queue.insert(at, (None, Box::new(event)));
    }

    /// Plans what a sidecar does.
    pub fn unless_crashed(
        &mut self,
        sidecar: usize,
        in_us: u64,
        event: impl FnOnce(&mut Run<'_>) + 'static,
    ) {
        self.number += 1;
        let at = (self.now + in_us, self.number);
        let whose = Some((sidecar, self.sidecars[sidecar].life));
        self.queue.insert(at, (whose, Box::new(event)));
    }

    /// A sidecar's clock.
    pub fn clock(&self, sidecar: usize) -> u64 {
        self.now + self.sidecars[sidecar].zero_us
    }

    pub fn store_us(&self) -> u64 {
        self.now + self.store_ahead
    }

    /// The store's clock steps.
    pub fn step(&mut self, us: i64) {
        self.store_ahead = self.store_ahead.saturating_add_signed(us);
        self.steps += 1;
        self.held_at_steps += self.held(0..SIDECARS) + self.in_flight;
    }

    /// An answer of the time after so many steps has arrived.
    pub fn notice(&mut self, sidecar: usize, steps: u64) {
        let one = &mut self.sidecars[sidecar];
        if self.world.noticed && one.steps < steps {
            one.steps = steps;
            one.pool.end_all();
            one.pool.forget_remaining();
            self.unless_crashed(sidecar, 0, move |run| run.collect(sidecar));
        }
    }

    pub fn decide(&mut self, cost: u64, secret: Option<u128>) -> Outcome {
        let takes = 0..self.buckets.len();
        let receipt = secret.map(|secret| Receipt {
            key: receipt_key(&self.subject, "l", secret),
            units: cost,
            lifetime_us: 600 * SECOND,
        });
        let batch = Batch {
            buckets: self.buckets.clone(),
            decisions: vec![Decision {
                takes: takes.map(|bucket| Take { bucket, cost }).collect(),
                peek: false,
                receipts: receipt.into_iter().collect(),
            }],
        };
        self.stores.decide(self.store_us(), &batch)[0]
    }

    fn give_back(&mut self, secret: u128, units: u64) {
        let returns = Returns {
            buckets: self.buckets.clone(),
            returns: vec![Return {
                receipt: receipt_key(&self.subject, "l", secret),
                units,
                buckets: (0..self.buckets.len()).collect(),
            }],
        };
        self.stores.give(self.store_us(), &returns);
    }

    pub fn admit(&mut self, units: u64) {
        self.admitted.push((self.now, self.store_us(), units));
    }

    fn note_asked(&mut self, cost: u64) {
        let weight = self.weight_at(self.asked.len(), self.now) + cost as f64;
        self.asked.push((self.now, cost, weight));
    }

    /// Returns units to their lease, or to the store.
    pub fn put_back(&mut self, sidecar: usize, units: u64, secret: u128) {
        let one = &mut self.sidecars[sidecar];
        if !one.pool.put_back(units, |tag| *tag == secret) && units > 0 {
            one.returned += units;
            self.give_back(secret, units);
        }
    }

    /// A request of the sidecar's own client, or of a filter. A mixed one waits for the store's answer about another check.
    pub fn ask(&mut self, sidecar: usize, filter: Option<usize>, cost: u64, mixed: bool) {
        self.note_asked(cost);
        match filter {
            Some(filter) => self.filter_request(sidecar, filter, cost, mixed),
            None => self.request(sidecar, cost, mixed),
        }
    }

    pub fn request(&mut self, sidecar: usize, cost: u64, mixed: bool) {
        let now_us = self.clock(sidecar);
        let stay_us = if mixed { 20 * MS } else { 0 };
        let one = &mut self.sidecars[sidecar];
        let taken = one.pool.take(now_us, cost, stay_us);
        let taken = taken.map(|taken| (taken.ends_us, *taken.tag));
        match taken {
            Some((ends_us, secret)) if mixed => {
                one.tentative += cost;
                let (in_us, admitted) = (self.random(60 * MS), self.random(4) > 0);
                self.unless_crashed(sidecar, in_us, move |run| {
                    let now_us = run.clock(sidecar);
                    let one = &mut run.sidecars[sidecar];
                    one.tentative -= cost;
                    if admitted && now_us < ends_us {
                        one.spent += cost;
                        run.seen.leased += cost;
                        run.admit(cost);
                    } else {
                        run.put_back(sidecar, cost, secret);
                    }
                });
            }
            Some(_) => {
                one.spent += cost;
                self.seen.leased += cost;
                self.admit(cost);
            }
            None => self.ask_store(sidecar, cost),
        }
        self.wish(sidecar);
    }

    fn ask_store(&mut self, sidecar: usize, cost: u64) {
        let outcome = self.decide(cost, None);
        self.notice(sidecar, self.steps);
        let pool = &mut self.sidecars[sidecar].pool;
        pool.note_remaining(outcome.remaining);
        if outcome.admitted {
            self.seen.by_store += cost;
            self.admit(cost);
            return;
        }
        self.seen.denials += 1;
        self.check_idle(sidecar, cost);
        let now_us = self.clock(sidecar);
        let pool = &mut self.sidecars[sidecar].pool;
        if pool.held() > 0 && outcome.remaining + pool.held() >= cost {
            pool.end_all();
            pool.refused(now_us);
            self.unless_crashed(sidecar, 0, move |run| run.collect(sidecar));
        }
    }

    fn wish(&mut self, sidecar: usize) {
        let now_us = self.clock(sidecar);
        let pool = &mut self.sidecars[sidecar].pool;
        if pool.wants_lease(now_us) {
            pool.asked();
            let in_us = self.random(20 * MS);
            self.unless_crashed(sidecar, in_us, move |run| run.plan(sidecar));
        }
    }

    /// The keeper decides what to ask for.
    pub fn plan(&mut self, sidecar: usize) {
        let sent_us = self.clock(sidecar);
        // What a sidecar knows of the store's clock may be early.
        let late_us = self.random(5 * MS);
        let store_us = Some(self.store_us() - late_us);
        let pool = &mut self.sidecars[sidecar].pool;
        match pool.ask(&self.world.windows, sent_us, store_us) {
            Ok(units) => {
                let in_us = self.random(15 * MS);
                self.unless_crashed(sidecar, in_us, move |run| run.call(sidecar, units, sent_us));
            }
            Err(_) => pool.refused(sent_us),
        }
    }

    /// Its call runs in the store.
    fn call(&mut self, sidecar: usize, units: u64, sent_us: u64) {
        self.secrets += 1;
        let secret = self.secrets;
        let outcome = self.decide(units, Some(secret));
        if self.random(20) == 0 {
            // The answer is lost: its units are for nobody.
            let now_us = self.clock(sidecar);
            self.sidecars[sidecar].pool.refused(now_us);
            return;
        }
        let in_us = self.random(15 * MS);
        let (steps, in_flight) = (self.steps, if outcome.admitted { units } else { 0 });
        self.in_flight += in_flight;
        self.unless_crashed(sidecar, in_us, move |run| {
            run.in_flight -= in_flight;
            run.notice(sidecar, steps);
            run.granted(sidecar, units, sent_us, secret, outcome);
        });
    }

    /// Its answer arrives.
    fn granted(&mut self, sidecar: usize, units: u64, sent_us: u64, secret: u128, told: Outcome) {
        let (now_us, windows) = (self.clock(sidecar), &self.world.windows);
        let (ends_us, remaining) = (
            sent_us + TERMS.length_us(windows, told.at_us),
            told.remaining,
        );
        let one = &mut self.sidecars[sidecar];
        one.granted += if told.admitted { units } else { 0 };
        let is_useful = now_us < ends_us && remaining >= reserve(&TERMS, windows);
        if !(told.admitted && is_useful) {
            one.pool.refused(now_us);
            one.pool.note_remaining(remaining);
            if told.admitted {
                one.returned += units;
                self.give_back(secret, units);
            }
            return;
        }
        one.pool.granted(Grant {
            units,
            ends_us,
            remaining,
            tag: secret,
        });
        let (held, bound) = (self.held(0..SIDECARS), self.bound());
        assert!(held <= bound, "{held} units are held, over {bound}");
        self.seen.most_held = self.seen.most_held.max(held);
        self.seen.most_of_bound = self.seen.most_of_bound.max(100 * held / bound.max(1));
        let in_us = ends_us - now_us + self.random(20 * MS);
        self.unless_crashed(sidecar, in_us, move |run| run.collect(sidecar));
    }

    /// The keeper returns what has ended.
    pub fn collect(&mut self, sidecar: usize) {
        let now_us = self.clock(sidecar);
        self.tell(sidecar);
        for ended in self.sidecars[sidecar].pool.ended(now_us) {
            self.sidecars[sidecar].returned += ended.units;
            if ended.units > 0 {
                self.give_back(ended.tag, ended.units);
            }
        }
    }

    pub fn crash(&mut self, sidecar: usize) {
        let one = &mut self.sidecars[sidecar];
        one.life += 1;
        one.pool = Pool::new(TERMS);
        one.parts.clear();
        (one.granted, one.spent, one.returned, one.tentative) = (0, 0, 0, 0);
    }
}
