//! The rules that the sidecar pushes: requests for them, and their compilation a little at a time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use sluicegate_protocol::{
    Answer, FILTER_HEADER, RULES_HEADER, RULES_PATH, RULES_WAIT_S, RulesReport,
};
use sluicegate_rules::{
    Document, Pushed, RULES_REFUSED, RULES_UPDATED, RuleSet, Updates, VerdictError,
};

use crate::host::{Host, Level};
use crate::plugin::Plugin;

/// How long Envoy waits for an answer in addition to the sidecar's own wait.
const GRACE: Duration = Duration::from_secs(5);

thread_local! {
    /// When any root context of the VM has compiled last.
    static COMPILED_US: Cell<u64> = const { Cell::new(0) };
}

/// Updates that may follow; the rules in force are in the plugin.
#[derive(Default)]
pub struct RuleUpdates {
    updates: RefCell<Updates>,
    /// The token of the request under way.
    token: Cell<Option<u32>>,
    compiling: RefCell<Option<Compiling>>,
    /// The sets before those in force, for a change that is taken back.
    previous: RefCell<Option<(String, Vec<Rc<RuleSet>>)>>,
    /// Whether it says that a sidecar holds back the rules of another: then it does not bring these.
    is_held: Cell<bool>,
    /// Since when answers name other rules.
    stale_us: Cell<Option<u64>>,
    /// What was logged last.
    said: RefCell<String>,
}

/// A document, compiled in part.
struct Compiling {
    digest: String,
    stage: Stage,
}

enum Stage {
    Lines(Document),
    /// Compiled, with the names of counters that Envoy does not have yet.
    Counters(Vec<Rc<RuleSet>>, VecDeque<String>),
    Done(Vec<Rc<RuleSet>>),
}

impl Stage {
    /// Compiles a line, or defines a counter.
    fn advance(self, host: &impl Host, pushed: &Pushed) -> Result<Self, String> {
        match self {
            Self::Lines(mut document) => {
                if let Some(why) = host.no_memory() {
                    return Err(why);
                }
                if document.compile_line().map_err(|why| why.to_string())? {
                    return Ok(Self::Lines(document));
                }
                let sets = document.finish(&pushed.sets);
                let sets = sets.map_err(|why| why.to_string())?;
                let names = sets.iter().flat_map(|set| set.counters.names());
                let names = names.map(str::to_owned).collect();
                Ok(Self::Counters(sets, names))
            }
            Self::Counters(sets, mut names) => Ok(match names.pop_front() {
                Some(name) => {
                    host.define_counter(&name);
                    Self::Counters(sets, names)
                }
                None => Self::Done(sets),
            }),
            done @ Self::Done(_) => Ok(done),
        }
    }
}

impl RuleUpdates {
    /// Whether the request under way has this token.
    pub fn awaits(&self, token: u32) -> bool {
        self.token.get() == Some(token)
    }

    /// Whether to ask the sidecar now.
    pub fn is_due(&self, now_us: u64) -> bool {
        self.token.get().is_none() && !self.is_compiling() && self.updates.borrow().is_due(now_us)
    }

    /// Whether some of the newest rules are still to be compiled.
    pub fn is_compiling(&self) -> bool {
        self.compiling.borrow().is_some()
    }

    /// Whether to report often.
    pub fn reports_often(&self) -> bool {
        self.updates.borrow().reports_often()
    }

    /// Whether a sidecar has not answered a report since the last change.
    pub fn is_untold(&self) -> bool {
        self.updates.borrow().is_untold()
    }

    /// Whether no more than one sidecar has answered lately.
    pub fn has_one_sidecar(&self, now_us: u64) -> bool {
        self.updates.borrow().has_one_sidecar(now_us)
    }

    /// The revision of a report that is written now.
    pub fn revision(&self) -> u64 {
        self.updates.borrow().revision()
    }

    /// Which rules this filter has, for a sidecar.
    pub fn report(&self, plugin: &Plugin<impl Host>, now_us: u64) -> String {
        let (updates, denials) = (self.updates.borrow(), plugin.denials.borrow());
        let (refused, held) = (updates.refused(), updates.held(now_us));
        let report = RulesReport {
            vm: plugin.vm.as_str().into(),
            node: plugin.node.as_str().into(),
            sets: plugin.pushed.sets.iter().map(Into::into).collect(),
            serves: plugin.serves.get(),
            in_force: updates.in_force().map(Into::into),
            refused: refused.map(|(digest, _)| digest.into()),
            why: refused.map(|(_, why)| why.into()),
            held: held.map(|(digest, _)| digest.into()),
            held_by: held.map(|(_, sidecar)| format!("{sidecar:x}").into()),
            limits: denials.told().map(Into::into),
            pepper: Some(plugin.settings.hasher.pepper_digest().into()),
        };
        report.to_string()
    }

    /// Asks the sidecar for rules that this filter does not have, and tells it which it has.
    pub fn request(&self, plugin: &Plugin<impl Host>, now_us: u64) {
        let report = self.report(plugin, now_us);
        self.is_held
            .set(self.updates.borrow().held(now_us).is_some());
        let headers = [
            (":method", "GET"),
            (":path", RULES_PATH),
            (":authority", plugin.settings.cluster.as_str()),
            (FILTER_HEADER, plugin.announcement.as_str()),
            (RULES_HEADER, report.as_str()),
        ];
        let timeout = Duration::from_secs(RULES_WAIT_S) + GRACE;
        let (host, cluster) = (&plugin.host, &plugin.settings.cluster);
        let sent = host.call(cluster, headers.to_vec(), None, timeout);
        self.updates.borrow_mut().sent(now_us);
        match sent {
            Ok(token) => self.token.set(Some(token)),
            Err(why) => self.say(host, &why.to_string()),
        }
    }

    /// The sidecar has answered the request under way, or not.
    pub fn answered(
        &self,
        plugin: &Plugin<impl Host>,
        body: Result<Vec<u8>, VerdictError>,
        now_us: u64,
    ) {
        self.token.set(None);
        self.stale_us.set(None);
        let mut updates = self.updates.borrow_mut();
        let read = body.map_err(|why| (why.to_string(), matches!(why, VerdictError::Body(_))));
        let read = read.and_then(|body| Document::new(body).map_err(|why| (why.to_string(), true)));
        let document = match read {
            Ok(document) => document,
            Err((why, is_unusable)) => {
                match is_unusable {
                    true => updates.unusable(now_us),
                    false => updates.failed(now_us),
                }
                self.say(
                    &plugin.host,
                    &format!("no new rules from the sidecar: {why}"),
                );
                return;
            }
        };
        let head = &document.head;
        if let Some(limits) = &head.limits {
            let mut denials = plugin.denials.borrow_mut();
            denials.tell(limits, head.ended.as_deref());
        }
        let digest = head.digest.clone();
        let may = updates.named(&digest, &head.earlier, head.instance, now_us);
        if !may || (head.lines == 0 && self.is_held.get()) {
            return;
        }
        let mut previous = self.previous.borrow_mut();
        let stage = match previous.take_if(|(known, _)| *known == digest) {
            Some((_, sets)) => Ok(Stage::Counters(sets, VecDeque::new())),
            None => match document.check() {
                Ok(()) => Ok(Stage::Lines(document)),
                Err(why) => Err(why.to_string()),
            },
        };
        match stage {
            Ok(stage) => drop(self.compiling.replace(Some(Compiling { digest, stage }))),
            Err(why) => self.refuse(&plugin.host, &mut updates, digest, why),
        }
    }

    /// An answer to a question names the rules in force at the sidecar. If the request under way does not bring them, it is
    /// at another sidecar: then it is given up. `told`: the revision of the report that was with the question.
    pub fn named(&self, answer: &Answer<'_>, told: Option<u64>, now_us: u64) {
        let Some(digest) = &answer.rules else {
            return;
        };
        let earlier = answer.earlier.as_deref().unwrap_or_default();
        let mut updates = self.updates.borrow_mut();
        updates.named(digest, earlier, answer.instance, now_us);
        if let Some(revision) = told {
            updates.told(answer.instance, revision);
        }
        if !updates.wants(now_us) || self.is_compiling() {
            return self.stale_us.set(None);
        }
        let since_us = self.stale_us.get().unwrap_or(now_us);
        self.stale_us.set(Some(since_us));
        if now_us.saturating_sub(since_us) >= updates.gives_up_after_us() {
            self.token.set(None);
            // The next request has as long.
            self.stale_us.set(None);
        }
    }

    /// Compiles for about this long, and puts the sets in force when they are complete.
    pub fn compile(&self, plugin: &Plugin<impl Host>, now_us: u64, for_us: u64) {
        // The sets of all root contexts of the VM together take no more than a third of the worker's time.
        let compiled_us = COMPILED_US.get();
        if compiled_us > 0 && now_us.saturating_sub(compiled_us) < 2 * for_us {
            return;
        }
        let Some(mut compiling) = self.compiling.take() else {
            return;
        };
        loop {
            compiling.stage = match compiling.stage.advance(&plugin.host, &plugin.pushed) {
                Ok(Stage::Done(sets)) => {
                    return self.replace(plugin, sets, compiling.digest);
                }
                Ok(stage) => stage,
                Err(why) => {
                    let mut updates = self.updates.borrow_mut();
                    return self.refuse(&plugin.host, &mut updates, compiling.digest, why);
                }
            };
            let later_us = plugin.host.monotonic_us();
            if later_us.saturating_sub(now_us) >= for_us {
                COMPILED_US.set(later_us);
                self.compiling.replace(Some(compiling));
                return;
            }
        }
    }

    /// Puts these sets in force, and keeps the earlier ones.
    fn replace(&self, plugin: &Plugin<impl Host>, sets: Vec<Rc<RuleSet>>, digest: String) {
        let mut updates = self.updates.borrow_mut();
        let before = updates.in_force().map(str::to_owned);
        self.previous
            .replace(before.zip(Some(plugin.replace_rules(sets))));
        plugin.host.add_to_counter(RULES_UPDATED, 1);
        self.said.take();
        let line = format!("sluicegate: rules {digest} are in force");
        plugin.host.log(Level::Info, &line);
        updates.replaced(digest);
    }

    fn refuse(&self, host: &impl Host, updates: &mut Updates, digest: String, why: String) {
        host.add_to_counter(RULES_REFUSED, 1);
        let line = format!(
            "sluicegate: rules {digest} refused, the earlier ones stay: {why}; docs/runbook.md#sluicegaterulesrefused"
        );
        host.log(Level::Error, &line);
        updates.refuse(digest, &why);
    }

    /// Logs a failure, unless it was the last one to be logged.
    fn say(&self, host: &impl Host, what: &str) {
        if self.said.replace(what.to_owned()) != what {
            host.log(Level::Warn, &format!("sluicegate: {what}"));
        }
    }
}
