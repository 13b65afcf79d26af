//! What `sluicegate check` has found, step by step.

use sluicegate::lint::{Finding, Severity};
use sluicegate::mask::masked;

use crate::cli::Failure;
use crate::cli::exit::Exit;
use crate::cli::output::totals;
use crate::cli::stdout::line;

/// The steps, in the order in which they need each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Policy,
    Store,
    Sidecar,
    Filter,
    Request,
}

impl Step {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// What an error in it means.
    fn means(self) -> &'static str {
        match self {
            Self::Policy => "a running sidecar keeps its earlier policy, a new one does not start",
            Self::Store => "sidecars cannot count there as they should",
            Self::Sidecar => "it may not decide, or not by this policy",
            Self::Filter => "requests may be limited by other rules, or by none",
            Self::Request => "requests like this one may not be limited",
        }
    }

    /// The page's section on it.
    fn page(self) -> &'static str {
        match self {
            Self::Policy => "docs/policy.md#fields-of-a-limit",
            Self::Store => "docs/redis.md#what-do-you-have",
            Self::Sidecar => "docs/runbook.md#sluicegatesidecarmissing",
            Self::Filter => "docs/rules.md#who-has-which-rules",
            Self::Request => "docs/troubleshooting.md#nothing-is-limited",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Well,
    /// It was not looked at.
    Unknown,
    Warning,
    Error,
}

struct Line {
    step: Step,
    state: State,
    text: String,
    page: &'static str,
    exit: Exit,
}

/// All lines, by step.
#[derive(Default)]
pub struct Report(Vec<Line>);

impl Report {
    fn push(&mut self, step: Step, (state, exit): (State, Exit), text: String, page: &'static str) {
        let at = self.0.partition_point(|before| before.step <= step);
        let line = Line {
            step,
            state,
            text,
            page,
            exit,
        };
        self.0.insert(at, line);
    }

    /// Adds a line, on which there is this section.
    pub fn add(&mut self, step: Step, state: State, text: impl Into<String>, page: &'static str) {
        self.push(step, (state, Exit::System), text.into(), page);
    }

    /// Adds what is right, unless something of this step is wrong. Whether it is right.
    pub fn well(&mut self, step: Step, text: impl Into<String>) -> bool {
        let is_wrong = |line: &Line| line.step == step && line.state == State::Error;
        let is_well = !self.0.iter().any(is_wrong);
        if is_well {
            self.add(step, State::Well, text, step.page());
        }
        is_well
    }

    /// Adds that a step was not looked at.
    pub fn skip(&mut self, step: Step, why: &str) {
        self.add(step, State::Unknown, why, step.page());
    }

    /// Adds that a step failed.
    pub fn fail(&mut self, step: Step, why: &Failure) {
        let text = masked(&why.to_string()).replace('\n', " ");
        let page = match why.exit {
            Exit::NotPermitted => "docs/sidecar.md#who-may-call-what",
            _ => step.page(),
        };
        self.push(step, (State::Error, why.exit), text, page);
    }

    /// Adds a finding in a file.
    pub fn finding(&mut self, step: Step, found: &Finding) {
        let text = format!("{}:{}: {}", found.file, found.line, found.message);
        match found.severity {
            Severity::Warning => self.add(step, State::Warning, text, step.page()),
            Severity::Error => self.fail(step, &Failure::usage(text)),
        }
    }

    /// The first error, and its step.
    pub fn failure(&self) -> Option<(Step, Failure)> {
        let first = self.0.iter().find(|line| line.state == State::Error)?;
        let why = format!("not all is well: begin with the {}", first.step.name());
        Some((first.step, Failure::new(first.exit, why)))
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for one in &self.0 {
            let (mark, means) = match one.state {
                State::Well => ('✓', "more"),
                State::Unknown => ('-', "not checked"),
                State::Warning => ('!', "a warning"),
                State::Error => ('✗', one.step.means()),
            };
            line!(text, "{mark} {:<8} {}", one.step.name(), one.text);
            line!(text, "           {means}: {}", one.page);
        }
        let count = |state| self.0.iter().filter(|line| line.state == state).count();
        text + &totals(count(State::Error), count(State::Warning)) + "\n"
    }
}
