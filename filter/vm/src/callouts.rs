//! The queue of waiting requests, callouts in flight, wake-ups and delivery.
//!
//! Only the root context makes callouts. A request joins the queue and, if no wake-up is pending, wakes the root in the
//! next turn of Envoy's event loop; by then the other requests of the same turn are waiting too. The root's timer
//! handles expired requests, slow callouts and lost wake-ups.
//!
//! Conclusions go through an outbox. Envoy performs the actions of a call into the VM when the call returns, and nests
//! them: each local reply calls `on_http_response_headers`, which performs the next one when it returns. About 270 of
//! them exhaust the VM's stack.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use sluicegate_certificates::CallTimes;
use sluicegate_protocol::{
    CachedDenials, DECIDE_PATH, FILTER_HEADER, LEASES_HEADER, PartReport, RULES_HEADER,
    UNKNOWN_HEADER, VM_HEADER, Verdict,
};
use sluicegate_rules::{
    Batch, BatchLimits, CalloutQueue, Conclusion, Evaluation, LeaseReport, Question, Reserves,
    RuleSet, Taken, TickClock, VerdictError, question_body, read_answer,
};

use crate::host::{CurrentRequest, Host};
use crate::plugin::Plugin;
use crate::rule_updates::RuleUpdates;
use crate::settling::Settling;
use crate::waiter::{State, Waiter, without_rules};
use crate::wakeup::Wakeup;

/// Most conclusions that one call into the VM delivers; the rest follow after a wake-up.
const MAX_DELIVERED: usize = 64;
/// How often the counters are flushed to Envoy, and cached denials reported to the sidecar if no other callout carries
/// the report.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often the timer looks for leases that have ended.
const LEASES_EVERY: Duration = Duration::from_millis(25);

/// How often the timer looks for facts to send.
const FACTS_EVERY: Duration = Duration::from_millis(25);

/// How long the sidecar may take to lend more units: it may have to ask the store, and no request waits for it. The filter could
/// not spend units in an answer that it has given up.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);

/// If Envoy's worker is late by some time, a callout gets this many times that in addition: it may need that many turns to
/// connect, write and read. Requests wait no longer than the queue says.
const LATE_TURNS: u64 = 4;
const MAX_LATE: Duration = Duration::from_secs(10);

/// How long the sidecar may wait for slots that are given back, before requests are denied that lack no more than these: what
/// another worker has freed may be on its way. The sidecar decides once more then, which takes as long as any decision may.
const WAIT_MS: u64 = 10;

/// How often the filter announces its version and configuration to the sidecar: `sluicegate_filter_info` in its metrics. The
/// first time is a second after the start, with or without requests, so that a wrong `sidecar.cluster` is noticed at once.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(15);

/// How often it announces them while sidecars have other rules than this filter, or do not know yet which it has: an idle filter
/// must hear from all sidecars that it may ask, and they from it.
const ANNOUNCE_OFTEN: Duration = Duration::from_millis(500);
/// How much sooner a tick may come than what is due by then: each is in whole milliseconds after the last.
const TICK_ERROR: Duration = Duration::from_millis(10);

/// While rules are compiled, the timer fires as often as it can, and each time compiles for about a millisecond: meanwhile
/// the worker serves requests.
const COMPILE_EVERY: Duration = Duration::from_millis(1);
/// Most time for which rules are compiled in one call into the VM, but for the last line's.
const COMPILE_FOR: Duration = Duration::from_millis(1);
/// Most requests that wait for the first rules, and how often the timer looks at them.
const MAX_EARLY: usize = 4_096;
/// Most of these requests that wait for verdicts at once: as many as one callout asks for.
const MAX_RELEASED: usize = 256;
const EARLY_EVERY: Duration = Duration::from_millis(25);

/// The immediate result of a request: a conclusion, or that it waits.
pub enum Decision {
    Concluded(Conclusion),
    Waits(Rc<Waiter>),
}

/// The requests that a callout is for: none if it carries only a report.
#[derive(Default)]
struct Asking {
    batch: Option<Batch<Rc<Waiter>>>,
    /// Those that slots alone have denied, with the verdicts that say so.
    again: Vec<(Rc<Waiter>, Vec<Verdict<'static>>)>,
}

impl Asking {
    fn questions(&self) -> impl Iterator<Item = (&Question, &Taken)> {
        let batch = self.batch.iter().flat_map(|batch| &batch.waiters);
        let again = self.again.iter().map(|(waiter, _)| waiter);
        batch.chain(again).filter_map(|waiter| waiter.asked())
    }
}

/// A callout in flight, by Envoy's token.
struct SentCallout {
    asking: Asking,
    sent_us: u64,
    timeout_us: u64,
    report: Vec<CachedDenials<'static>>,
    leases: LeaseReport,
    /// The revision of the rules that it announces, if it does.
    told: Option<u64>,
}

/// The callouts of one configuration.
pub struct Callouts<H: Host> {
    root: u32,
    pub plugin: Plugin<H>,
    queue: RefCell<CalloutQueue<Rc<Waiter>>>,
    sent: RefCell<BTreeMap<u32, SentCallout>>,
    /// Conclusions to deliver.
    outbox: RefCell<VecDeque<(Rc<Waiter>, Conclusion)>>,
    wakeup: Wakeup<H>,
    /// The period of the root's timer.
    tick_us: Cell<u64>,
    /// The queue's clock.
    clock: Cell<TickClock>,
    reported_us: Cell<u64>,
    announced_us: Cell<u64>,
    /// The root was woken to ask for more units.
    renewal_pending: Cell<bool>,
    /// The rules that the sidecar pushes.
    rules: RuleUpdates,
    /// Requests that wait for the first rules, and until when.
    early: RefCell<VecDeque<(u64, Rc<Waiter>)>>,
    /// What requests have reserved.
    settling: Settling,
}

// Borrows of a `RefCell` never overlap, because a second one would panic: each ends before the next begins.
impl<H: Host> Callouts<H> {
    /// For the current root context.
    pub fn new(root: u32, plugin: Plugin<H>) -> Self {
        let limits = if plugin.settings.together {
            BatchLimits::SHARED
        } else {
            BatchLimits::SINGLE
        };
        // Envoy makes no callouts before it is configured: the first tick asks for rules.
        let tick = COMPILE_EVERY;
        let host = plugin.host.clone();
        host.tick_every(tick);
        Self {
            root,
            queue: RefCell::new(CalloutQueue::new(plugin.timeout_us(), limits)),
            plugin,
            sent: RefCell::default(),
            outbox: RefCell::default(),
            wakeup: Wakeup::register(host.clone()),
            tick_us: Cell::new(as_us(tick)),
            clock: Cell::new(TickClock::new(host.monotonic_us(), as_us(tick))),
            reported_us: Cell::new(0),
            announced_us: Cell::new(0),
            renewal_pending: Cell::new(false),
            rules: RuleUpdates::default(),
            early: RefCell::default(),
            settling: Settling::default(),
        }
    }

    fn now_us(&self) -> u64 {
        self.plugin.host.monotonic_us()
    }

    /// Runs an action in the context of a waiting request.
    fn in_stream(&self, waiter: &Waiter, action: impl FnOnce()) {
        self.plugin
            .host
            .in_context(waiter.stream, self.root, action);
    }

    /// Decides on the current request, or has it wait.
    pub fn decide(&self, stream: u32) -> Decision {
        let request = self.plugin.host.current_request();
        self.plugin.serves.set(true);
        if let Some(rules) = self.plugin.rules_for(&request) {
            return self.decide_by(&rules, &request, stream, None);
        }
        let now_us = self.now_us();
        let hold_us = as_us(self.plugin.pushed.hold);
        let mut early = self.early.borrow_mut();
        if early.len() >= MAX_EARLY {
            early.retain(|(_, waiter)| !Waiter::is_done(waiter));
        }
        if hold_us == 0 || early.len() >= MAX_EARLY {
            return Decision::Concluded(without_rules(
                &self.plugin.host,
                Some(&self.plugin.pushed),
                &request,
            ));
        }
        let waiter = Rc::new(Waiter::new(stream));
        early.push_back((now_us.saturating_add(hold_us), Rc::clone(&waiter)));
        drop(early);
        self.shorten_tick();
        Decision::Waits(waiter)
    }

    /// Decides by these rules. `waiter`: the request has waited for them.
    fn decide_by(
        &self,
        rules: &Rc<RuleSet>,
        request: &CurrentRequest<'_, H>,
        stream: u32,
        waiter: Option<&Rc<Waiter>>,
    ) -> Decision {
        let plugin = &self.plugin;
        let question = match rules.evaluate(&plugin.settings, request) {
            Evaluation::Pass => {
                return Decision::Concluded(Conclusion::unchanged());
            }
            Evaluation::Refuse(reply) => return Decision::Concluded(Conclusion::Answer(reply)),
            Evaluation::NoVerdict(question, why) => {
                return Decision::Concluded(plugin.conclude(&question, Err(why)));
            }
            Evaluation::Ask(question) => question,
        };
        let now_us = self.now_us();
        let cached = plugin.denials.borrow_mut().covering(&question, now_us);
        if let Some(verdicts) = cached {
            return Decision::Concluded(plugin.conclude(&question, Ok(&verdicts)));
        }
        let mut leases = plugin.leases.borrow_mut();
        let taken = leases.take(&question, now_us, plugin.timeout_us());
        drop(leases);
        self.renew_leases();
        if taken.covers_enforced(&question) {
            plugin.spend(&question, &taken);
        }
        if taken.covers_all(&question) {
            return Decision::Concluded(plugin.admit(&question, &taken));
        }
        let waiter = waiter.map_or_else(|| Rc::new(Waiter::new(stream)), Rc::clone);
        let asked = waiter.ask(question, taken);
        let Err(why) = self.submit(now_us, asked.0, &waiter) else {
            return Decision::Waits(waiter);
        };
        // It waits no longer: what it took is settled here, and not again when the stream ends.
        waiter.end();
        Decision::Concluded(plugin.conclude_rest(asked, Err(why)))
    }

    /// Decides on requests that have waited for rules, if these are known or the time is over; as many as one call may. While
    /// many wait for verdicts, the next must wait: the sidecar could not answer all of them in time.
    fn release_early(&self, now_us: u64) {
        for _ in 0..MAX_DELIVERED {
            let has_room = self.queue.borrow().waiting() < MAX_RELEASED;
            let mut early = self.early.borrow_mut();
            let is_due = early.front().is_some_and(|(until_us, waiter)| {
                if self.plugin.has_rules() {
                    has_room
                } else {
                    *until_us <= now_us || Waiter::is_done(waiter)
                }
            });
            let Some((_, waiter)) = early.pop_front_if(|_| is_due) else {
                return;
            };
            drop(early);
            if waiter.waits() {
                self.in_stream(&waiter, || self.decide_early(&waiter));
            }
        }
        self.wakeup.notify();
    }

    fn decide_early(&self, waiter: &Rc<Waiter>) {
        let request = self.plugin.host.current_request();
        let decision = match self.plugin.rules_for(&request) {
            Some(rules) => self.decide_by(&rules, &request, waiter.stream, Some(waiter)),
            None => Decision::Concluded(without_rules(
                &self.plugin.host,
                Some(&self.plugin.pushed),
                &request,
            )),
        };
        if let Decision::Concluded(conclusion) = decision {
            waiter.wake(&self.plugin.host, conclusion);
        }
    }

    /// Adds a request to the queue.
    ///
    /// # Errors
    /// The queue is full.
    fn submit(
        &self,
        now_us: u64,
        question: &Question,
        waiter: &Rc<Waiter>,
    ) -> Result<(), VerdictError> {
        let load = (question.load(), || question.subjects());
        let queue_us = self.queue_us(now_us);
        let mut queue = self.queue.borrow_mut();
        let wake = queue.submit(queue_us, load, Rc::clone(waiter), Waiter::is_done)?;
        drop(queue);
        if wake {
            self.wakeup.notify();
        }
        self.shorten_tick();
        Ok(())
    }

    /// The time by which requests wait.
    fn queue_us(&self, now_us: u64) -> u64 {
        self.clock.get().at(now_us)
    }

    /// Wakes the root if more units should be asked for.
    fn renew_leases(&self) {
        let leases = self.plugin.leases.borrow();
        if leases.wants_renewal() && !self.renewal_pending.replace(true) {
            self.wakeup.notify();
        }
    }

    /// The root was woken by the shared queue with this id.
    pub fn on_wakeup(&self, queue: u32) {
        if self.wakeup.is(queue) {
            self.wakeup.drain();
            let now_us = self.now_us();
            self.release_early(now_us);
            self.settling.send(&self.plugin, now_us);
            self.send_batches(now_us);
            self.send_renewal(now_us);
            self.deliver();
        }
    }

    /// The root's timer has fired.
    pub fn on_tick(&self) {
        let now_us = self.now_us();
        let expired = self.queue.borrow_mut().expired(self.queue_us(now_us));
        for waiter in &expired {
            self.conclude(waiter, Err(VerdictError::Timeout));
        }
        self.update_rules(now_us);
        self.release_early(now_us);
        self.send_batches(now_us);
        self.send_renewal(now_us);
        self.settling.send(&self.plugin, now_us);
        self.report(now_us);
        self.deliver();
        self.adjust_tick();
    }

    /// Asks the sidecar for rules, or compiles some more of those that have come.
    fn update_rules(&self, now_us: u64) {
        let for_us = as_us(COMPILE_FOR);
        self.rules.compile(&self.plugin, now_us, for_us);
        self.request_rules(now_us);
    }

    /// Asks the sidecar for other rules, unless that has been done.
    fn request_rules(&self, now_us: u64) {
        if self.rules.is_due(now_us) {
            self.rules.request(&self.plugin, now_us);
        }
    }

    /// The callout with this token is over.
    pub fn on_response(&self, token: u32, headers: usize, body_size: usize) {
        if self.rules.awaits(token) {
            let body = self.plugin.host.answer(headers, body_size);
            let now_us = self.now_us();
            self.rules.answered(&self.plugin, body, now_us);
            self.request_rules(now_us);
            self.shorten_tick();
            return;
        }
        if self.settling.awaits(token) {
            let body = self.plugin.host.answer(headers, body_size).ok();
            let now_us = self.now_us();
            self.settling
                .answered(&self.plugin, body.as_deref(), now_us);
            self.shorten_tick();
            return;
        }
        let Some(sent) = self.sent.borrow_mut().remove(&token) else {
            return;
        };
        let body = self.plugin.host.answer(headers, body_size);
        self.finish_callout(sent, body.as_deref().map_err(VerdictError::clone));
        let now_us = self.now_us();
        let queue_us = self.queue_us(now_us);
        let mut queue = self.queue.borrow_mut();
        let wake = queue.wants_wakeup(queue_us, Waiter::is_done);
        drop(queue);
        if wake {
            self.wakeup.notify();
        }
        self.release_early(now_us);
        self.deliver();
    }

    /// Sends as many callouts for waiting requests as are allowed now.
    fn send_batches(&self, now_us: u64) {
        self.queue.borrow_mut().woken();
        loop {
            let queue_us = self.queue_us(now_us);
            let mut queue = self.queue.borrow_mut();
            let Some(batch) = queue.next_batch(queue_us, Waiter::is_done) else {
                return;
            };
            drop(queue);
            let leases = self.plugin.leases.borrow_mut().report(now_us, false);
            let untold = self.rules.is_untold();
            let announcement = untold.then(|| self.announcement(now_us));
            let late_us = LATE_TURNS * self.clock.get().late_us(now_us);
            let timeout_us = batch.timeout_us + late_us.min(as_us(MAX_LATE));
            let asking = Asking {
                batch: Some(batch),
                ..Asking::default()
            };
            self.post(now_us, (asking, announcement), leases, timeout_us);
        }
    }

    /// Asks once more for requests that slots alone have denied. It is a callout beside those of the queue, so that no other request
    /// waits for it.
    fn ask_again(&self, again: Vec<(Rc<Waiter>, Vec<Verdict<'static>>)>) {
        if again.is_empty() {
            return;
        }
        let now_us = self.now_us();
        let leases = self.plugin.leases.borrow_mut().report(now_us, false);
        let timeout_us = self.plugin.timeout_us() + WAIT_MS * 1_000;
        let asking = Asking { batch: None, again };
        self.post(now_us, (asking, None), leases, timeout_us);
    }

    /// Asks for more units of leased keys, in a callout of its own: the sidecar may ask the store before it answers.
    fn send_renewal(&self, now_us: u64) {
        self.renewal_pending.set(false);
        if !self.plugin.leases.borrow().wants_renewal() {
            return;
        }
        let leases = self.plugin.leases.borrow_mut().report(now_us, true);
        if leases.asks() {
            let timeout_us = self.plugin.timeout_us().max(as_us(RENEWAL_TIMEOUT));
            self.post(now_us, (Asking::default(), None), leases, timeout_us);
        } else {
            self.plugin.leases.borrow_mut().failed(leases, now_us);
        }
    }

    /// The stream of a request that has reserved units has ended: after it has passed, or not.
    pub fn settle(&self, reserves: &Rc<Reserves>, passed: bool) {
        let now_us = self.now_us();
        if (self.settling).ended(&self.plugin, reserves, passed, now_us) {
            self.wakeup.notify();
        }
        self.shorten_tick();
    }

    /// Tells of leases that have ended, if no other callout has. Once a second also tells of cached denials, announces the
    /// filter if that is due, and flushes the counters.
    fn report(&self, now_us: u64) {
        let is_due = |last: &Cell<u64>, every: Duration| {
            let due = now_us.saturating_sub(last.get()) >= as_us(every.saturating_sub(TICK_ERROR));
            if due {
                last.set(now_us);
            }
            due
        };
        let mut reports = self.plugin.leases.borrow_mut().has_report(now_us);
        let every_second = is_due(&self.reported_us, REPORT_EVERY);
        if every_second {
            if (self.settling).renew(now_us, now_us.saturating_add(as_us(REPORT_EVERY))) {
                self.wakeup.notify();
            }
            reports |= self.plugin.denials.borrow().has_report();
        }
        let often = self.rules.reports_often();
        let announce_every = if often {
            ANNOUNCE_OFTEN
        } else {
            ANNOUNCE_EVERY
        };
        let announces = (every_second || often) && is_due(&self.announced_us, announce_every);
        let announcement = announces.then(|| self.announcement(now_us));
        if reports || announcement.is_some() {
            let leases = self.plugin.leases.borrow_mut().report(now_us, false);
            let timeout_us = self.plugin.timeout_us();
            self.post(
                now_us,
                (Asking::default(), announcement),
                leases,
                timeout_us,
            );
        }
        if every_second {
            self.plugin.flush_counters();
        }
    }

    /// Which filter this is, and which rules it has.
    fn announcement(&self, now_us: u64) -> (&str, String) {
        let rules = self.rules.report(&self.plugin, now_us);
        (&self.plugin.announcement, rules)
    }

    fn post(
        &self,
        now_us: u64,
        (asking, announcement): (Asking, Option<(&str, String)>),
        leases: LeaseReport,
        timeout_us: u64,
    ) {
        let report = self.plugin.denials.borrow_mut().report();
        let wait_ms = (!asking.again.is_empty()).then_some(WAIT_MS);
        let facts = self.settling.facts();
        let asks = |limit: &str, key: &str| {
            let mut questions = asking.questions();
            questions.any(|(question, _)| question.asks(limit, key))
        };
        let body = question_body(asking.questions(), &report, facts.releases(asks), wait_ms);
        let has_slots = (asking.questions()).any(|(question, _)| question.asks_for_slots());
        drop(facts);
        let spent = PartReport::write_all(&leases.parts);
        let sent = SentCallout {
            asking,
            sent_us: now_us,
            timeout_us,
            report,
            leases,
            told: announcement.is_some().then(|| self.rules.revision()),
        };
        // Envoy's timeouts are in milliseconds, and 0 means no timeout.
        let timeout = Duration::from_millis(timeout_us.div_ceil(1_000).max(1));
        let cluster = &self.plugin.settings.cluster;
        let mut headers = vec![
            (":method", "POST"),
            (":path", DECIDE_PATH),
            (":authority", cluster),
            ("content-type", "application/json"),
            (UNKNOWN_HEADER, "named"),
        ];
        // A part is accounted for by the sidecar that lent it. Which of several is asked is not known.
        if self.rules.has_one_sidecar(now_us) {
            headers.push((LEASES_HEADER, &spent));
        }
        // It lists whose slots are in use.
        if has_slots {
            headers.push((VM_HEADER, &self.plugin.vm));
        }
        // The sidecar learns which filter and configuration ask.
        if let Some((text, rules)) = &announcement {
            headers.push((FILTER_HEADER, text));
            headers.push((RULES_HEADER, rules));
        }
        match self
            .plugin
            .host
            .call(cluster, headers, Some(&body), timeout)
        {
            Ok(token) => drop(self.sent.borrow_mut().insert(token, sent)),
            Err(why) => {
                if sent.told.is_some() {
                    self.plugin.not_announced(&why);
                }
                self.finish_callout(sent, Err(why));
            }
        }
    }

    /// Concludes for all requests of a callout.
    fn finish_callout(&self, sent: SentCallout, body: Result<&[u8], VerdictError>) {
        let decisions = |waiter: &Rc<Waiter>| {
            let asked = waiter.asked();
            asked.map_or(0, |(question, taken)| taken.decisions_to_ask(question))
        };
        let times = CallTimes {
            sent_us: sent.sent_us,
            answered_us: self.now_us(),
        };
        let answered_us = body.is_ok().then(|| self.queue_us(times.answered_us));
        let is_over = times.answered_us.saturating_sub(sent.sent_us) >= sent.timeout_us;
        let mut queue = self.queue.borrow_mut();
        let Asking { batch, again } = sent.asking;
        let waiters = batch.map_or_else(Vec::new, |Batch { id: callout, .. }| {
            if matches!(body, Err(VerdictError::Timeout)) && is_over {
                queue.retry(callout, self.queue_us(times.answered_us));
            }
            queue.complete(callout, answered_us)
        });
        drop(queue);
        let asked = waiters.iter().map(decisions).sum::<usize>() + again.len();
        let answer = body.and_then(|body| read_answer(body, asked));
        let mut leases = self.plugin.leases.borrow_mut();
        let mut most_ms = 0;
        match &answer {
            Ok(answer) => {
                leases.answered(sent.leases, answer.version(), &answer.leases, times);
                let mut denials = self.plugin.denials.borrow_mut();
                most_ms = denials.answered(answer.version(), answer.limits.as_deref(), times);
                self.rules.named(answer, sent.told, times.answered_us);
            }
            Err(_) => {
                leases.failed(sent.leases, times.answered_us);
                self.plugin.denials.borrow_mut().put_back(sent.report);
            }
        }
        drop(leases);
        self.shorten_tick();
        let (mut from, mut denied) = (0, Vec::new());
        for waiter in &waiters {
            let Some((question, taken)) = waiter.asked() else {
                continue;
            };
            let to = from + decisions(waiter);
            match &answer {
                Ok(answer) => {
                    let answered = answer.verdicts.get(from..to).unwrap_or_default();
                    if waiter.waits() && taken.is_denied_by_slots(question, answered) {
                        let owned = answered.iter().cloned().map(Verdict::into_owned);
                        denied.push((Rc::clone(waiter), owned.collect()));
                    } else {
                        self.answered(waiter, answered, (usize::MAX, most_ms), times);
                    }
                }
                Err(why) => self.conclude(waiter, Err(why.clone())),
            }
            from = to;
        }
        for (index, (waiter, mut verdicts)) in again.into_iter().enumerate() {
            let is_made = |verdict: &&Verdict<'_>| {
                matches!(verdict, Verdict::Admitted(_) | Verdict::Denied(_))
            };
            // Whatever comes in place of a verdict, the first one stands.
            let answer = answer.as_ref().ok();
            let made = answer.and_then(|answer| answer.verdicts.get(index).filter(is_made));
            if let Some((first, made)) = verdicts.first_mut().zip(made) {
                *first = made.clone().into_owned();
            }
            let news = usize::from(made.is_some());
            self.answered(&waiter, &verdicts, (news, most_ms), times);
        }
        self.ask_again(denied);
    }

    /// Concludes for a request by the verdicts on what was asked for, and keeps what they have reserved. `news`: how many of them
    /// this answer has told, and for how long denials among these may be cached.
    fn answered(
        &self,
        waiter: &Rc<Waiter>,
        answered: &[Verdict<'_>],
        (news, most_ms): (usize, u64),
        times: CallTimes,
    ) {
        let Some((question, taken)) = waiter.asked() else {
            return;
        };
        let reserves = question.reserves(answered, taken, times.answered_us);
        let verdicts = taken.verdicts(question, answered);
        let mut denials = self.plugin.denials.borrow_mut();
        let news = verdicts.get(..news).unwrap_or(&verdicts);
        denials.learn(question, most_ms, news, times);
        drop(denials);
        self.conclude(waiter, Ok(&verdicts));
        match reserves {
            Some(reserves) if waiter.state.get() == State::Over => self.settle(&reserves, false),
            Some(reserves) => self.settling.keep(waiter, reserves),
            None => {}
        }
    }

    /// Puts a conclusion into the outbox, unless the request has one already or its client has hung up.
    fn conclude(&self, waiter: &Rc<Waiter>, verdicts: Result<&[Verdict<'_>], VerdictError>) {
        if let (true, Some(asked)) = (waiter.waits(), waiter.asked()) {
            waiter.state.set(State::Concluded);
            let conclusion = self.plugin.conclude_rest(asked, verdicts);
            self.outbox
                .borrow_mut()
                .push_back((Rc::clone(waiter), conclusion));
        }
    }

    /// Delivers as many conclusions as one call into the VM may, and wakes the root for the rest.
    fn deliver(&self) {
        for _ in 0..MAX_DELIVERED {
            let Some((waiter, conclusion)) = self.outbox.borrow_mut().pop_front() else {
                return;
            };
            // The client may have hung up meanwhile.
            if waiter.state.get() == State::Concluded {
                self.in_stream(&waiter, || waiter.wake(&self.plugin.host, conclusion));
            }
        }
        if !self.outbox.borrow().is_empty() {
            self.wakeup.notify();
        }
    }

    /// Shortens the timer's period to what waiting requests and leases need. Only the timer itself lengthens it again: each
    /// change starts the period anew, so that a timer that requests lengthened and shortened would never fire.
    fn shorten_tick(&self) {
        let tick_us = self.needed_tick_us();
        if tick_us < self.tick_us.get() {
            self.set_tick(tick_us);
        }
    }

    /// Sets the timer's period to what waiting requests and leases need.
    fn adjust_tick(&self) {
        let tick_us = self.needed_tick_us();
        if tick_us == self.tick_us.get() {
            self.start_clock();
        } else {
            self.set_tick(tick_us);
        }
    }

    fn set_tick(&self, tick_us: u64) {
        self.tick_us.set(tick_us);
        self.plugin.host.tick_every(Duration::from_micros(tick_us));
        self.start_clock();
    }

    /// The timer was set or has fired.
    fn start_clock(&self) {
        let mut clock = self.clock.get();
        clock.timer_set(self.now_us(), self.tick_us.get());
        self.clock.set(clock);
    }

    /// How long until the next report. A timer that is set anew begins anew, so a whole second each time would postpone it.
    fn next_report_us(&self) -> u64 {
        let due_us = self.reported_us.get().saturating_add(as_us(REPORT_EVERY));
        // Envoy's timer knows milliseconds, and 0 stops it.
        let ms = due_us.saturating_sub(self.now_us()).div_ceil(1_000);
        ms.max(1).saturating_mul(1_000)
    }

    fn needed_tick_us(&self) -> u64 {
        if self.rules.is_compiling() {
            return as_us(COMPILE_EVERY);
        }
        // First, since requests wait: the next report is known by the clock only.
        if let Some(tick_us) = self.queue.borrow().poll_interval_us() {
            return tick_us;
        }
        if !self.outbox.borrow().is_empty() {
            // A wake-up delivers the rest; the timer makes up for a lost one.
            return self.tick_us.get();
        }
        let facts_us = if self.settling.is_empty() {
            u64::MAX
        } else {
            as_us(FACTS_EVERY)
        };
        let idle_us = if !self.plugin.has_rules() || !self.early.borrow().is_empty() {
            as_us(EARLY_EVERY)
        } else if self.plugin.leases.borrow().is_empty() {
            as_us(if self.rules.reports_often() {
                ANNOUNCE_OFTEN
            } else {
                REPORT_EVERY
            })
        } else {
            as_us(LEASES_EVERY)
        };
        idle_us.min(facts_us).min(self.next_report_us())
    }
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
