//! `sluicegate settle`: tells what units that were taken have cost in fact.

use sluicegate_protocol::{Settle as Entry, Settled};

use super::Failure;
use super::checks::used;
use super::exit::Exit;
use super::output::Output;
use super::target::Target;

/// Arguments of `settle`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate settle --limit yt-quota --key cred-1 --receipt 6f1c0b5e8d2a4c7f9e3b1a5d7c0f2e4b --units 40\n\nMore:\n  docs/jobs.md#what-was-used"
)]
pub struct Settle {
    /// The limit's name in the policy.
    #[arg(long, value_name = "NAME")]
    limit: String,
    /// The subject's key. Use a name, not a secret: other users of this machine see arguments in the process list.
    #[arg(long, value_name = "KEY")]
    key: String,
    /// The receipt that `sluicegate decide --receipt` printed. It is settled only once.
    #[arg(long, value_name = "RECEIPT")]
    receipt: String,
    /// Units that were used; 0 returns all that were taken. What was not used comes back, what was used beyond it is taken now.
    #[arg(long, value_name = "N", value_parser = used(), allow_negative_numbers = true)]
    units: u64,
    #[command(flatten)]
    target: Target,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Settle {
    pub async fn run(self) -> Result<Exit, Failure> {
        let decider = self.target.open().await?;
        let entry = Entry {
            limit: self.limit.into(),
            key: self.key.into(),
            receipt: self.receipt.into(),
            units: Some(self.units),
            within_ms: None,
        };
        let outcomes = decider.settle(&[entry]).await?;
        decider.end(&outcomes, self.output, |outcome| match outcome {
            Settled::Returned { units } => Ok(format!("{} returned\n", counted(*units))),
            Settled::Charged { units } => Ok(format!("{} charged\n", counted(*units))),
            Settled::Unknown => Ok("nothing changed: the receipt was settled before, its time is over, or it belongs to another limit or key\n".to_owned()),
            Settled::Renewed => Ok(String::new()),
            Settled::Error(problem) => Err(Some(problem)),
            Settled::Unavailable => Err(None),
        })?;
        Ok(match *outcomes {
            [Settled::Unknown] => Exit::NotSettled,
            _ => Exit::Success,
        })
    }
}

fn counted(units: u64) -> String {
    match units {
        1 => "1 unit".to_owned(),
        units => format!("{units} units"),
    }
}
