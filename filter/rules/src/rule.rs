//! Rules, ready to be matched, and what a request has to ask because of them.

use crate::address::{self, Mask, Source};
use crate::config::Sidecar;
use crate::key::{Hasher, Key};
use crate::request::Request;

/// Everything that one plugin configuration says.
#[derive(Debug)]
pub struct Rules {
    /// Where to ask.
    pub sidecar: Sidecar,
    pub(crate) hasher: Hasher,
    pub(crate) rules: Vec<Rule>,
}

/// Which requests, and the checks to make for them.
#[derive(Debug)]
pub(crate) struct Rule {
    pub matcher: Matcher,
    pub checks: Vec<CheckRule>,
    pub when_unavailable: WhenUnavailable,
}

/// Which requests a rule is for; all that is said must hold.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    pub path_prefix: Option<String>,
    /// Empty: any.
    pub methods: Vec<String>,
}

/// A check to be made for each request that matches.
#[derive(Debug)]
pub(crate) struct CheckRule {
    pub limit: String,
    pub parts: Vec<Part>,
    pub cost: u64,
    pub when_missing: WhenMissing,
}

/// One part of a key.
#[derive(Debug)]
pub(crate) enum Part {
    Header { name: String, plain: bool },
    Address { source: Source, mask: Mask },
    Path,
    Constant(String),
}

/// What to do when a request lacks a part of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhenMissing {
    /// The check is not made.
    Skip,
    /// The request is refused.
    Deny,
    /// The part is this constant.
    Use(String),
}

/// What to answer when no verdict is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnavailable {
    /// Let the request through, unmetered.
    Allow,
    /// 503 with a body that says so.
    Deny,
}

/// One check that a request has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The limit's name in the policy.
    pub limit: String,
    /// Whom it is about.
    pub key: String,
    /// Units.
    pub cost: u64,
}

/// What a request has to ask the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// All checks of all rules that match; admitted together or not at all.
    pub checks: Vec<Check>,
    /// `Deny` if one of those rules says so.
    pub when_unavailable: WhenUnavailable,
}

/// What the rules say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// No rule has a check for it.
    Pass,
    /// A rule refuses requests that lack a part of their key; the limit's name.
    Missing(String),
    /// Ask this.
    Ask(Question),
}

impl Rules {
    /// Matches a request against all rules and derives its keys.
    pub fn evaluate(&self, request: &dyn Request) -> Evaluation {
        let path = request.header(":path").unwrap_or_default();
        let path = path_only(&path);
        let method = request.header(":method").unwrap_or_default();
        let mut question = Question {
            checks: Vec::new(),
            when_unavailable: WhenUnavailable::Allow,
        };
        for rule in self
            .rules
            .iter()
            .filter(|rule| rule.matcher.matches(path, &method))
        {
            for check in &rule.checks {
                match check.key(&self.hasher, request, path) {
                    Derived::Key(key) => {
                        question.checks.push(Check {
                            limit: check.limit.clone(),
                            key,
                            cost: check.cost,
                        });
                        if rule.when_unavailable == WhenUnavailable::Deny {
                            question.when_unavailable = WhenUnavailable::Deny;
                        }
                    }
                    Derived::Skip => {}
                    Derived::Deny => return Evaluation::Missing(check.limit.clone()),
                }
            }
        }
        if question.checks.is_empty() {
            Evaluation::Pass
        } else {
            Evaluation::Ask(question)
        }
    }
}

/// The path without its query.
fn path_only(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == b'?').next().unwrap_or_default()
}

impl Matcher {
    fn matches(&self, path: &[u8], method: &[u8]) -> bool {
        self.path_prefix
            .as_ref()
            .is_none_or(|prefix| path.starts_with(prefix.as_bytes()))
            && (self.methods.is_empty()
                || self.methods.iter().any(|name| name.as_bytes() == method))
    }
}

enum Derived {
    Key(String),
    Skip,
    Deny,
}

impl CheckRule {
    fn key(&self, hasher: &Hasher, request: &dyn Request, path: &[u8]) -> Derived {
        let mut key = Key::new(hasher);
        for part in &self.parts {
            if !part.add(&mut key, request, path) {
                match &self.when_missing {
                    WhenMissing::Skip => return Derived::Skip,
                    WhenMissing::Deny => return Derived::Deny,
                    // Under a name that no present part has, so that a client cannot send the constant itself.
                    WhenMissing::Use(constant) => {
                        key.plain(&format!("@missing/{}", part.name()), constant.as_bytes())
                    }
                }
            }
        }
        Derived::Key(key.finish())
    }
}

impl Part {
    /// What the part is called in a key.
    fn name(&self) -> &str {
        match self {
            Self::Header { name, .. } => name,
            // No header's name holds an `@`.
            Self::Address { .. } => "@address",
            Self::Path => "@path",
            Self::Constant(_) => "@constant",
        }
    }

    /// Adds the part to a key; false when the request does not have it.
    fn add(&self, key: &mut Key<'_>, request: &dyn Request, path: &[u8]) -> bool {
        match self {
            Self::Header { name, plain } => match request.header(name) {
                // An empty header names nobody.
                None => return false,
                Some(value) if value.is_empty() => return false,
                Some(value) if *plain => key.plain(self.name(), &value),
                Some(value) => key.hashed(self.name(), &value),
            },
            Self::Address { source, mask } => match address::client(request, *source, *mask) {
                None => return false,
                Some(address) => key.plain(self.name(), address.as_bytes()),
            },
            Self::Path => key.plain(self.name(), path),
            Self::Constant(value) => key.plain(self.name(), value.as_bytes()),
        }
        true
    }
}
