//! `sluicegate reset`: restores the whole quota of a limit for a key.

use sluicegate_protocol::{PEEK_PATH, Reset as Entry, WasReset, Whom};

use super::Failure;
use super::admin::Admin;
use super::checks::{LimitSubject, refused};
use super::direct::Direct;
use super::output::Output;
use super::target::Decider;

/// Arguments of `reset`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate reset --limit per-tenant --key acme",
    mut_arg("admin", |admin| admin.conflicts_with("policy"))
)]
pub struct Reset {
    #[command(flatten)]
    of: LimitSubject,
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    direct: Direct,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Reset {
    pub async fn run(self) -> Result<(), Failure> {
        let decider = match self.direct.open(&self.admin.patience).await? {
            Some(store) => Decider::Here(Box::new(store)),
            None => Decider::Sidecar(self.admin.client()?, PEEK_PATH),
        };
        let (limit, whom) = self.of.whom();
        let (key, subject) = match &whom {
            Whom::Subject(digits) => ("", Some(digits.into())),
            Whom::Key(key) => (key.as_str(), None),
            Whom::AllKeys(_) => return Err(Failure::usage("name a key")),
        };
        let entry = Entry {
            limit: limit.as_str().into(),
            key: key.into(),
            subject,
        };
        let outcome = decider.reset(&entry).await?;
        self.output
            .print(&outcome, |outcome| text(outcome, &limit))?;
        match outcome {
            WasReset::Error(problem) => Err(refused(&problem, true)),
            WasReset::Unavailable => Err(decider.unavailable()),
            WasReset::Reset { .. } => Ok(()),
        }
    }
}

fn text(outcome: &WasReset, limit: &str) -> String {
    let before = match outcome {
        WasReset::Reset { held: true } => "",
        WasReset::Reset { held: false } => "; nothing was used",
        // The command's error message has the cause.
        WasReset::Error(_) | WasReset::Unavailable => return String::new(),
    };
    format!("limit `{limit}`: the whole quota is available again for this key{before}\n")
}
