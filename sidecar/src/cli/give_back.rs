//! `sluicegate give-back`: returns unused units.

use sluicegate_protocol::{GiveBack as Entry, GivenBack};

use super::Failure;
use super::checks::cost;
use super::output::Output;
use super::target::Target;

/// Arguments of `give-back`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate give-back --limit yt-quota --key cred-1 --receipt 6f1c0b5e8d2a4c7f9e3b1a5d7c0f2e4b"
)]
pub struct GiveBack {
    /// The limit's name in the policy.
    #[arg(long, value_name = "NAME")]
    limit: String,
    /// The subject's key. Use a name, not a secret: other users of this machine see arguments in the process list.
    #[arg(long, value_name = "KEY")]
    key: String,
    /// The receipt that `sluicegate decide --receipt` printed. Its units are returned only once.
    #[arg(long, value_name = "RECEIPT")]
    receipt: String,
    /// Units to return; the default is all units that were taken.
    #[arg(long, value_name = "N", value_parser = cost(), allow_negative_numbers = true)]
    units: Option<u64>,
    #[command(flatten)]
    target: Target,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl GiveBack {
    pub async fn run(self) -> Result<(), Failure> {
        let decider = self.target.open().await?;
        let entry = Entry {
            limit: self.limit.into(),
            key: self.key.into(),
            receipt: self.receipt.into(),
            units: self.units,
        };
        let outcomes = decider.settle(&[entry]).await?;
        decider.end(&outcomes, self.output, |outcome| match outcome {
            GivenBack::GivenBack { units: 0 } => Ok("0 units returned: they were returned before, have expired, or belong to another limit or key\n".to_owned()),
            GivenBack::GivenBack { units: 1 } => Ok("1 unit returned\n".to_owned()),
            GivenBack::GivenBack { units } => Ok(format!("{units} units returned\n")),
            GivenBack::Error(problem) => Err(Some(problem)),
            GivenBack::Unavailable => Err(None),
        })
    }
}
