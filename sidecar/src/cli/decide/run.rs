//! `sluicegate run`: holds slots of a limit while a command runs.

use std::cell::Cell;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use sluicegate::decide::Receipt;
use sluicegate_protocol::{Decision, Settle, Settled, Verdict};

use super::taken::{settle_entries, undo};
use super::{COST, admits, command, refused, text, verdict};
use crate::cli::Failure;
use crate::cli::checks::Checks;
use crate::cli::exit::{self, Exit};
use crate::cli::stdout::eprint;
use crate::cli::target::{Decider, Target};

/// How long a command may take to end when it has lost its slot.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Arguments of `run`.
#[derive(clap::Args)]
#[command(after_help = exit::after("sluicegate run --limit gpu --key team-a --wait 10m -- ./train.sh", "jobs.md#slots"))]
pub struct Run {
    #[command(flatten)]
    checks: Checks,
    /// How long to wait for a slot if all are in use.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
    #[command(flatten)]
    target: Target,
    /// End the command (SIGTERM, and SIGKILL ten seconds later) if the slot cannot be renewed for so long that it may be lost: no
    /// sidecar answers, or its store is away.
    #[arg(long)]
    strict: bool,
    /// Command to run. It receives signals, and its exit status is returned. The slots are freed when it ends; if this process is
    /// killed, so long after as the limit's `expire` says.
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<OsString>,
}

/// What the limits know the command by.
struct Slots<'a> {
    decider: &'a Decider,
    entries: Vec<Settle<'a>>,
    /// How long they last without a renewal.
    expire: Duration,
    /// They may be lost, and the command must end.
    is_lost: Cell<bool>,
}

impl Run {
    pub async fn run(self) -> Result<Exit, Failure> {
        let decision = Decision {
            checks: self.checks.all(),
            peek: false,
            receipt: true,
            shadow: None,
            traceparent: None,
        };
        let decider = self.target.open().await?;
        let verdict = verdict(&decider, &decision, self.wait).await?;
        let receipts: &[_] = match &verdict {
            Verdict::Admitted(status) => &status.receipt,
            Verdict::Denied(_) => {
                eprint(&text(&verdict));
                return Ok(Exit::Denied);
            }
            Verdict::Error(problem) => return Err(refused(problem, COST)),
            Verdict::Unavailable { .. } if admits(&verdict) => &[],
            Verdict::Unavailable { .. } => return Err(decider.unavailable()),
        };
        let slots = decision.checks.iter().zip(receipts);
        let slots = slots.filter_map(|(check, receipt)| match Receipt::read(receipt) {
            Some(Receipt::Slots(id)) => {
                Some((check, receipt, Duration::from_micros(id.lasts_us())))
            }
            _ => None,
        });
        let units = (&*decision.checks, receipts);
        let held = Slots {
            decider: &decider,
            is_lost: Cell::new(false),
            expire: slots
                .clone()
                .map(|(.., lasts)| lasts)
                .min()
                .unwrap_or(Duration::MAX),
            entries: slots
                .map(|(check, receipt, _)| Settle {
                    limit: check.limit.clone(),
                    key: check.key.clone(),
                    receipt: receipt.as_str().into(),
                    units: Some(0),
                    within_ms: None,
                })
                .collect(),
        };
        if held.entries.is_empty() && !receipts.iter().all(String::is_empty) {
            let why = "none of these limits has `algorithm: concurrency`: use `sluicegate decide`";
            return Err(undo(&decider, units, Exit::Usage, why.to_owned()).await);
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(Exit::Success);
        };
        let strict = self.strict;
        let beside = |process| held.renew(strict, process);
        let ended = match command::run(program, arguments, beside).await {
            Err((exit, why)) => return Err(undo(&decider, units, exit, why).await),
            Ok(ended) => ended,
        };
        held.free().await;
        std::process::exit(match held.is_lost.get() {
            true => Exit::Unavailable as i32,
            false => ended.status,
        })
    }
}

impl Slots<'_> {
    /// Renews them for ever, or until they may be lost and the command must end.
    async fn renew(&self, strict: bool, process: command::Process) {
        if self.entries.is_empty() {
            return std::future::pending().await;
        }
        let renewals = self.entries.iter().map(|entry| Settle {
            units: None,
            within_ms: Some(1),
            ..entry.clone()
        });
        let renewals: Vec<_> = renewals.collect();
        let (mut renewed, mut is_told) = (Instant::now(), false);
        loop {
            // Often enough while no one answers.
            let third = self.expire / 3;
            let pause = if renewed.elapsed() > third {
                third / 5
            } else {
                third
            };
            tokio::time::sleep(pause).await;
            let asked = Instant::now();
            let answer = self.decider.settle(&renewals).await;
            let is_renewed = |outcome: &Settled| *outcome == Settled::Renewed;
            let why = match answer {
                Ok(outcomes) if outcomes.iter().all(is_renewed) => {
                    (renewed, is_told) = (asked, false);
                    continue;
                }
                Ok(_) => "the store is away".to_owned(),
                Err(failure) => failure.to_string(),
            };
            if renewed.elapsed() > self.expire && !is_told {
                eprint(&format!(
                    "sluicegate: not renewed for longer than the limit's `expire`, the slot may be lost: {why}\n"
                ));
                is_told = true;
                if strict {
                    break;
                }
            }
        }
        self.is_lost.set(true);
        process.terminate();
        tokio::time::sleep(ENDS_WITHIN).await;
        process.kill();
        std::future::pending().await
    }

    /// The command has ended.
    async fn free(&self) {
        if self.entries.is_empty() {
            return;
        }
        let answer = settle_entries(self.decider, &self.entries).await;
        if let Err(why) = answer {
            eprint(&format!(
                "sluicegate: the slot is not freed, and ends by itself after the limit's `expire`: {why}\n"
            ));
        }
    }
}
