//! `sluicegate give-back`: returns unused units.

use sluicegate_protocol::{GiveBack as Entry, GivenBack};

use super::Failure;
use super::checks::{LimitKey, cost, refused};
use super::output::Output;
use super::target::Target;

/// Arguments of `give-back`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate give-back --limit yt-quota --key cred-1 --receipt 6f1c0b5e8d2a4c7f9e3b1a5d7c0f2e4b"
)]
pub struct GiveBack {
    #[command(flatten)]
    of: LimitKey,
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
            limit: self.of.limit.as_str().into(),
            key: self.of.key.as_str().into(),
            receipt: self.receipt.as_str().into(),
            units: self.units,
        };
        let outcome = decider.only(decider.give_back(&[entry]).await?)?;
        self.output.print(&outcome, text)?;
        match outcome {
            GivenBack::Error(problem) => Err(refused(&problem, true)),
            GivenBack::Unavailable => Err(decider.unavailable()),
            GivenBack::GivenBack { .. } => Ok(()),
        }
    }
}

fn text(outcome: &GivenBack) -> String {
    match outcome {
        GivenBack::GivenBack { units: 0 } => "0 units returned: they were returned before, have expired, or belong to another limit or key\n"
            .to_owned(),
        GivenBack::GivenBack { units: 1 } => "1 unit returned\n".to_owned(),
        GivenBack::GivenBack { units } => format!("{units} units returned\n"),
        // The command's error message has the cause.
        GivenBack::Error(_) | GivenBack::Unavailable => String::new(),
    }
}
