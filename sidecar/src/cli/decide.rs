//! `sluicegate decide`: takes units before a job spends them.

mod command;
pub mod run;
mod taken;
mod wait;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use sluicegate::decide::Receipt;
use sluicegate_protocol::{Check, Decision, LimitStatus, MAX_COST, Settled, Verdict, WithoutStore};

use super::Failure;
use super::checks::{COST, Checks, refused, used};
use super::exit::{self, Exit};
use super::output::{NOT_AT_ALL, Output, Span, UNTIL_CHANGED, window};
use super::stdout::{eprint, not_written, print, write};
use super::target::{Decider, Target};
use taken::{Units, settle, undo};

/// How long `--wait` sleeps after a sidecar or store did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of `decide`.
#[derive(clap::Args)]
#[command(after_help = exit::after("sluicegate decide --limit yt-quota --key cred-1 --cost 100 --wait 5m -- ./fetch", "jobs.md"))]
pub struct Decide {
    #[command(flatten)]
    checks: Checks,
    /// How long to wait for the units if they are denied. If they become available only later, the command fails at
    /// once.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
    #[command(flatten)]
    target: Target,
    /// Also print a receipt for each check, in order. `sluicegate settle` needs it.
    #[arg(long)]
    receipt: bool,
    /// Units to take before the command runs, in place of `--cost`. The command writes how many it has used to the file that the
    /// environment variable SLUICEGATE_USED names: the others are returned, or more are taken. If it writes nothing, these stay
    /// taken. With 0, it is only asked whether any are left.
    #[arg(long, value_name = "N", requires_all = ["limit", "command"], conflicts_with = "cost", value_parser = used(), allow_negative_numbers = true)]
    reserve: Option<u64>,
    /// Do not print the verdict; use the exit status.
    #[arg(long, short, conflicts_with_all = ["receipt", "output"])]
    quiet: bool,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Command to run if the units are admitted. Without `--reserve` it replaces the `sluicegate` process; with it, it receives
    /// signals too. Its exit status is returned. If it cannot be started, the units are returned. Standard output belongs to the
    /// command: an admission is not printed.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Decide {
    pub async fn run(self) -> Result<Exit, Failure> {
        let command = self.command;
        let mut checks = self.checks.all();
        if let (Some(reserve), Some(first)) = (self.reserve, checks.first_mut()) {
            first.cost = reserve;
        }
        let decision = Decision {
            checks,
            peek: false,
            receipt: self.receipt || !command.is_empty(),
            shadow: None,
            traceparent: None,
        };
        let decider = self.target.open().await?;
        let asked = verdict(&decider, &decision, self.wait).await;
        let verdict = match asked {
            // With `--output json` a program gets an object, whether the sidecar or the store did not answer.
            Err(failure) if failure.exit == Exit::Unavailable => {
                let verdict = Verdict::Unavailable { then: None };
                self.output.print(&verdict, text)?;
                return Err(failure);
            }
            asked => asked?,
        };
        let admits = admits(&verdict);
        let receipts: &[_] = match &verdict {
            Verdict::Admitted(status) => &status.receipt,
            _ => &[],
        };
        let units = (&*decision.checks, receipts);
        if !self.quiet && (command.is_empty() || !admits) {
            let text = self.output.format(&verdict, text)?;
            if self.output == Output::Text && !command.is_empty() {
                // Standard output belongs to the command.
                eprint(&text);
            } else if receipts.is_empty() {
                print(&text)?;
            } else if let Err(error) = write(&text) {
                let why = not_written(&error);
                return Err(undo(&decider, units, Exit::NotWritten, why).await);
            }
        }
        match &verdict {
            _ if admits => {}
            Verdict::Denied(_) => return Ok(Exit::Denied),
            Verdict::Error(problem) => {
                let cost = self.reserve.map_or(COST, |_| Some("--reserve"));
                return Err(refused(
                    problem,
                    cost.filter(|_| self.checks.limit.is_some()),
                ));
            }
            _ => return Err(decider.unavailable()),
        }
        let is_of_slots =
            |receipt: &String| matches!(Receipt::read(receipt), Some(Receipt::Slots(_)));
        if !command.is_empty() && receipts.iter().any(is_of_slots) {
            let why = "a limit with `algorithm: concurrency` is for as long as the command runs: use `sluicegate run`";
            return Err(undo(&decider, units, Exit::Usage, why.to_owned()).await);
        }
        match command.split_first() {
            None => Ok(Exit::Success),
            Some((program, arguments)) if self.reserve.is_none() => {
                let (exit, why) = command::replace(program, arguments);
                Err(undo(&decider, units, exit, why).await)
            }
            Some((program, arguments)) => {
                match command::run(program, arguments, |_| std::future::pending()).await {
                    Err((exit, why)) => Err(undo(&decider, units, exit, why).await),
                    Ok(ended) => {
                        tell_used(&decider, units, ended.used).await;
                        std::process::exit(ended.status)
                    }
                }
            }
        }
    }
}

/// Settles the check of `--limit` with what the command has used. Its status is what counts: what fails is only told.
async fn tell_used(
    decider: &Decider,
    (checks, receipts): Units<'_>,
    used: Result<Option<u64>, String>,
) {
    let why = match used {
        Ok(None) => return,
        Err(why) => why,
        Ok(Some(used)) => {
            let ([first, others @ ..], [receipt, ..]) = (checks, receipts) else {
                return;
            };
            // Of one limit and key there is one receipt, for all their units.
            let same =
                |other: &&Check<'_>| (&other.limit, &other.key) == (&first.limit, &first.key);
            let used = others
                .iter()
                .filter(same)
                .map(|other| other.cost)
                .fold(used, u64::saturating_add)
                .min(MAX_COST);
            let units = (std::slice::from_ref(first), std::slice::from_ref(receipt));
            match settle(decider, units, used).await {
                Ok(outcomes) if outcomes == [Settled::Unknown] => {
                    "its receipt has ended".to_owned()
                }
                Ok(_) => return,
                Err(failure) => format!(
                    "{failure}; try `sluicegate settle --limit {} --key {} --receipt {receipt} --units {used}`",
                    first.limit, first.key
                ),
            }
        }
    };
    eprint(&format!(
        "sluicegate: the units that were reserved are not settled, and may stay taken: {why}\n"
    ));
}

/// Asks, and asks again when the units become available, until they are admitted or `wait` is over.
async fn verdict(
    decider: &Decider,
    decision: &Decision<'_>,
    wait: Duration,
) -> Result<Verdict<'static>, Failure> {
    let started = Instant::now();
    loop {
        let asked = decider.decide([decision]).await.map(|[verdict]| verdict);
        let left = wait.saturating_sub(started.elapsed());
        let due = match &asked {
            // An estimate, or until somebody changes something: as long as there is time, there may be room.
            Ok(verdict @ Verdict::Denied(status))
                if verdict.is_denied_by_slots() || status.until_changed =>
            {
                Duration::from_millis(status.retry_after_ms).min(left)
            }
            Ok(Verdict::Denied(status)) => Duration::from_millis(status.retry_after_ms),
            Ok(verdict @ Verdict::Unavailable { .. }) if !admits(verdict) => ASK_AGAIN,
            Err(failure) if failure.exit == Exit::Unavailable => ASK_AGAIN,
            _ => return asked,
        };
        match wait::pause(due, left, wait::chance()) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return asked,
        }
    }
}

/// Whether `/v1/decide?denied=429` would answer 200: a policy may admit everything while the store is down.
fn admits(verdict: &Verdict<'_>) -> bool {
    matches!(
        verdict,
        Verdict::Admitted(_)
            | Verdict::Unavailable {
                then: Some(WithoutStore::Allow)
            }
    )
}

fn text(verdict: &Verdict<'_>) -> String {
    match verdict {
        Verdict::Admitted(status) => {
            let receipts = status.receipt.iter();
            let receipts = receipts.map(|receipt| format!("receipt {receipt}\n"));
            format!(
                "admitted: {}\n{}",
                left(status),
                receipts.collect::<String>()
            )
        }
        Verdict::Denied(status) if status.allows_nothing() => {
            format!("denied: by limit `{}`, this {NOT_AT_ALL}\n", status.limit)
        }
        Verdict::Denied(status) => {
            let due = match status.until_changed {
                true => UNTIL_CHANGED.to_owned(),
                false => format!("retry in {}", Span(status.retry_after_ms)),
            };
            format!("denied: {}; {due}\n", left(status))
        }
        Verdict::Unavailable {
            then: Some(WithoutStore::Allow),
        } => {
            "admitted: the store does not answer, and the policy has `when_store_is_down: allow`\n"
                .to_owned()
        }
        // The command's error message has the cause.
        Verdict::Unavailable { .. } | Verdict::Error(_) => String::new(),
    }
}

/// The units left in the window that decided.
fn left(status: &LimitStatus<'_>) -> String {
    let LimitStatus {
        remaining, quota, ..
    } = status;
    let window = window(status.window_ms, status.at_once);
    format!(
        "limit `{}` has {remaining} of {quota} {window}",
        status.limit
    )
}
