//! `sluicegate reset`: restores the whole quota of a limit for a key, or frees its slots.

use sluicegate_protocol::{PEEK_PATH, Reset as Entry, WasReset};

use super::Failure;
use super::admin::Admin;
use super::checks::LimitSubject;
use super::direct::Direct;
use super::output::Output;
use super::target::Decider;

/// Arguments of `reset`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate reset --limit per-tenant --key acme\n\nMore:\n  docs/jobs.md",
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
        let limit = &*self.of.limit;
        let entry = Entry {
            limit: limit.into(),
            key: self.of.key().unwrap_or_default().into(),
            subject: self.of.subject.as_deref().map(Into::into),
        };
        let outcomes = decider.reset(&entry).await?;
        decider.end(&outcomes, self.output, |outcome| {
            let (held, at_once) = match outcome {
                WasReset::Reset { held, at_once } => (*held, *at_once),
                WasReset::Error(problem) => return Err(Some(problem)),
                WasReset::Unavailable => return Err(None),
            };
            let now = match (at_once, held) {
                (false, true) => "the whole quota is available again for this key",
                (false, false) => "the whole quota is available again for this key; nothing was used",
                (true, true) => {
                    "all slots of this key are free; streams and jobs that hold one go on, and count again when they renew it, \
                     within a third of `expire`"
                }
                (true, false) => "all slots of this key are free; none was in use",
            };
            Ok(format!("limit `{limit}`: {now}\n"))
        })
    }
}
