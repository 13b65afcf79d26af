//! Compiles rules one by one, and makes a set of them.

use serde_json::Value;

use super::error::{ConfigError, invalid};
use super::fields::Fields;
use super::terms::{QuerySemicolon, Reply, WhenUnavailable};
use super::values::name;
use super::{checks, matching, replies, upstream};
use crate::path::Upstream;
use crate::query::ParameterNames;
use crate::reply::LimitTexts;
use crate::request_view::ViewOptions;
use crate::rule::{Rule, RuleSet};
use crate::settle::Slots;
use crate::stats::Counters;

/// Most rules. More are hard to reason about, and each has counters in Envoy, which are never freed.
pub const MAX_RULES: usize = 256;

/// A set in the making.
#[derive(Debug)]
pub(super) struct Builder {
    reply: Reply,
    upstream: Upstream,
    semicolon: Option<QuerySemicolon>,
    /// For each limit, a list of its windows: quota, and length in milliseconds. For slots also how long they are renewed: then the
    /// length is how long they live.
    windows: Value,
    pub rules: Vec<Rule>,
    counters: Counters,
    memo_slots: usize,
}

impl Builder {
    /// Of what a set says besides its rules.
    pub fn new(set: &mut Fields) -> Result<Self, ConfigError> {
        let (upstream, semicolon) = upstream::compile(set)?;
        Ok(Self {
            reply: set
                .inner("reply")?
                .map(replies::compile)
                .transpose()?
                .unwrap_or_default(),
            upstream,
            semicolon,
            windows: set.take("windows").unwrap_or_default(),
            rules: Vec::new(),
            counters: Counters::new(),
            memo_slots: 0,
        })
    }

    pub fn add(&mut self, file: Fields) -> Result<(), ConfigError> {
        if self.rules.len() == MAX_RULES {
            return invalid("rules", format_args!("has more than {MAX_RULES} entries"));
        }
        let at = file.at("name");
        let mut rule = self.compile(file)?;
        if self.rules.iter().any(|earlier| earlier.name == rule.name) {
            let why = format_args!("another rule has the name `{}` already", rule.name);
            return invalid(&at, why);
        }
        rule.matcher = rule.matcher.memoized(&mut self.memo_slots);
        let limits = rule.limits.iter().map(|limit| limit.name.as_str());
        let settles = rule.checks.iter().any(|check| check.settle.is_some());
        self.counters
            .add_rule(&rule.name, (rule.shadow, settles), limits);
        self.rules.push(rule);
        Ok(())
    }

    fn compile(&self, mut file: Fields) -> Result<Rule, ConfigError> {
        let name = file.text("name")?;
        let name = self::name(&file.at("name"), file.needs("name", name)?)?;
        let shadow = file.flag("shadow")?.unwrap_or_default();
        let stop = file.flag("stop")?.unwrap_or_default();
        if shadow && stop {
            let why = "a rule with `shadow: true` must not affect other rules: remove `stop`";
            return invalid(&file.at("stop"), why);
        }
        let when_unavailable = match file.word("when_unavailable", &["allow", "deny"])? {
            Some(0) => WhenUnavailable::Allow,
            Some(_) => WhenUnavailable::Deny,
            None if shadow => WhenUnavailable::Allow,
            None => {
                let why =
                    "is missing: set `allow` (cheap to serve unmetered) or `deny` (expensive)";
                return invalid(&file.at("when_unavailable"), why);
            }
        };
        let (matcher, variables) = matching::compile(file.inner("match")?)?;
        let (checks, limits) = checks::compile(&mut file, &variables)?;
        let limits = limits
            .iter()
            .map(|limit| {
                LimitTexts::new(&name, limit, self.windows_of(limit), self.slots_of(limit))
            })
            .collect();
        let reply = file.inner("reply")?.map(replies::compile).transpose()?;
        file.end()?;
        Ok(Rule {
            name,
            matcher,
            checks,
            limits,
            when_unavailable,
            stop,
            shadow,
            reply: reply.unwrap_or_else(|| self.reply.clone()),
        })
    }

    fn windows_of(&self, limit: &str) -> Vec<(u64, u64)> {
        let listed = self.windows.get(limit).and_then(Value::as_array);
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        listed.into_iter().flatten().filter_map(pair).collect()
    }

    fn slots_of(&self, limit: &str) -> Option<Slots> {
        let window = self.windows.get(limit)?.get(0)?;
        Some(Slots {
            expire_ms: window.get(1)?.as_u64()?,
            longest_ms: window.get(2)?.as_u64()?,
        })
    }

    pub fn finish(self) -> RuleSet {
        let (mut parameters, mut methods) = (Vec::new(), Vec::new());
        let rules = self.rules.iter();
        rules.for_each(|rule| rule.names(&mut parameters, &mut methods));
        RuleSet {
            view_options: ViewOptions {
                upstream: self.upstream,
                semicolon: self.semicolon,
                parameters: ParameterNames::new(parameters),
                methods,
                memo_slots: self.memo_slots,
            },
            counters: self.counters,
            rules: self.rules,
        }
    }
}
