//! `sluicegate peek`: shows how many units are left without taking any.

use serde::Serialize;
use sluicegate_protocol::{Code, Decision, LimitStatus, PEEK_PATH, Verdict};

use super::Failure;
use super::admin::AdminPort;
use super::checks::{COST, LimitSubject, check, cost, refused};
use super::output::{NOT_AT_ALL, Output, Span, UNTIL_CHANGED, window};
use super::target::{Decider, Target};

/// How often to look again when other callers took or returned units between two looks.
const LOOKS: usize = 3;

/// Arguments of `peek`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate peek --limit yt-quota --key cred-1 --output json\n\nMore:\n  docs/jobs.md"
)]
pub struct Peek {
    #[command(flatten)]
    of: LimitSubject,
    /// Also show when this many units can be taken at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = cost(), allow_negative_numbers = true)]
    cost: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    admin: AdminPort,
    /// Output format; `json` prints one object.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// The output. For a limit with several windows, it describes the window with the fewest units left.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Left {
    limit: String,
    quota: u64,
    window_ms: u64,
    /// Units are slots, of which nobody knows when they will be free: `retry_after_ms` is an estimate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_once: bool,
    /// Units that one call can take now.
    remaining: u64,
    /// Units taken beyond the quota.
    over: u64,
    /// Milliseconds until one call can take one unit more than `remaining`; none if no call ever can.
    next_unit_ms: Option<u64>,
    /// Milliseconds until the whole quota is available again; like the others, none of a block without an end.
    reset_ms: Option<u64>,
    /// The given `--cost`.
    cost: u64,
    /// Milliseconds until a call can take `cost` units; 0 if it can now.
    retry_after_ms: Option<u64>,
}

impl Peek {
    pub async fn run(self) -> Result<(), Failure> {
        let key = self.of.key();
        let decider = match key {
            Some(_) => self.target.open().await?,
            None => Decider::Sidecar(self.admin.client(&self.target.patience)?, PEEK_PATH),
        };
        let key = key.or(self.of.subject).unwrap_or_default();
        let left = look(&decider, (&self.of.limit, &key), self.cost).await?;
        self.output.print(&left, text)
    }
}

/// Looks twice: when one more unit becomes available can only be asked once it is known how many are left.
async fn look(decider: &Decider, (limit, key): (&str, &str), cost: u64) -> Result<Left, Failure> {
    let peek = |cost| Decision {
        checks: vec![check(limit, key, cost)],
        peek: true,
        receipt: false,
        shadow: None,
        traceparent: None,
    };
    let mut looks = 0;
    let mut remaining: u64 = 0;
    loop {
        let one_more = peek(remaining.saturating_add(1));
        // One call decides all three at the same time.
        let decisions = [&peek(0), &peek(cost), &one_more];
        let [now, room, next] = decider.decide(decisions).await?;
        let now = status(now, decider)?;
        looks += 1;
        let agrees = now.remaining == remaining;
        if !agrees && looks <= LOOKS {
            remaining = now.remaining;
            continue;
        }
        let next_unit_ms = match next {
            Verdict::Error(problem) if problem.code == Code::CostOverLimit => None,
            verdict => known(&status(verdict, decider)?, |of| of.retry_after_ms),
        };
        let room = status(room, decider)?;
        return Ok(Left {
            quota: now.quota,
            window_ms: now.window_ms,
            remaining: now.remaining,
            over: now.over,
            at_once: now.at_once,
            // Under constant traffic `remaining` changes with each look; then this time is for a value close to it.
            next_unit_ms: next_unit_ms.filter(|_| !now.at_once),
            // A cost of 0 is admitted where nothing else is.
            reset_ms: known(&room, |_| now.reset_ms).filter(|_| !now.at_once),
            cost,
            retry_after_ms: known(&room, |of| of.retry_after_ms),
            limit: now.limit.into_owned(),
        });
    }
}

/// A time, unless there is none before an operator changes something.
fn known(status: &LimitStatus<'_>, time: impl Fn(&LimitStatus<'_>) -> u64) -> Option<u64> {
    (!status.until_changed).then(|| time(status))
}

fn status(verdict: Verdict<'static>, decider: &Decider) -> Result<LimitStatus<'static>, Failure> {
    match verdict {
        Verdict::Admitted(status) | Verdict::Denied(status) => Ok(status),
        Verdict::Error(problem) => Err(refused(&problem, COST)),
        Verdict::Unavailable { .. } => Err(decider.unavailable()),
    }
}

fn text(left: &Left) -> String {
    let Left {
        limit,
        remaining,
        over,
        quota,
        cost,
        ..
    } = left;
    let window = window(left.window_ms, left.at_once);
    let over = match over {
        0 => String::new(),
        over => format!(", {over} over"),
    };
    let mut text = format!("limit `{limit}`: {remaining} of {quota} {window}{over}\n");
    if let Some(due @ 1..) = left.retry_after_ms {
        let (about, due) = match left.at_once {
            true => ("about ", due.next_multiple_of(1_000)),
            false => ("", due),
        };
        text += &format!("{cost} units available in {about}{}\n", Span(due));
    }
    if left.at_once && left.retry_after_ms.is_some() {
        return text;
    }
    if let Some(next @ 1..) = left.next_unit_ms {
        text += &format!("next unit available in {}\n", Span(next));
    }
    text += &match left.reset_ms {
        None if *quota == 0 => format!("{NOT_AT_ALL}\n"),
        None => format!("{UNTIL_CHANGED}\n"),
        Some(0) => "the whole quota is available now: nothing is counted for this key\n".to_owned(),
        Some(reset) => format!("whole quota available in {}\n", Span(reset)),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left() -> Left {
        Left {
            limit: "yt".to_owned(),
            quota: 100,
            window_ms: 86_400_000,
            at_once: false,
            remaining: 40,
            over: 0,
            next_unit_ms: Some(90_000),
            reset_ms: Some(7_200_000),
            cost: 50,
            retry_after_ms: Some(120_000),
        }
    }

    #[test]
    fn people_are_told_what_is_left_and_what_comes_when() {
        let some = "limit `yt`: 40 of 100 left in a window of 1day\n50 units available in 2m\nnext unit available in 1m 30s\nwhole quota available in 2h\n";
        assert_eq!(text(&left()), some);
        let whole = Left {
            remaining: 100,
            next_unit_ms: None,
            reset_ms: Some(0),
            retry_after_ms: Some(0),
            ..left()
        };
        let all = "limit `yt`: 100 of 100 left in a window of 1day\nthe whole quota is available now: nothing is counted for this key\n";
        assert_eq!(text(&whole), all);
        let debt = Left {
            remaining: 0,
            over: 12,
            ..left()
        };
        let some = "limit `yt`: 0 of 100 left in a window of 1day, 12 over\n";
        assert!(text(&debt).starts_with(some));
        let slots = Left {
            at_once: true,
            next_unit_ms: None,
            reset_ms: None,
            retry_after_ms: Some(2_000),
            ..left()
        };
        let some = "limit `yt`: 40 of 100 at once left\n50 units available in about 2s\n";
        assert_eq!(text(&slots), some);
        let blocked = Left {
            retry_after_ms: None,
            ..slots
        };
        assert!(text(&blocked).ends_with("blocked until an operator changes that\n"));
    }
}
