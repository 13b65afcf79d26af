//! Arguments for limits, keys and costs.

use std::borrow::Cow;

use clap::ArgGroup;
use clap::builder::RangedI64ValueParser;
use sluicegate::policy::consumer_key;
use sluicegate_protocol::{Check, MAX_COST, Problem, Whom};

use super::Failure;

/// One limit for one key, which its digits may name.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("whom").required(true).args(["key", "subject", "consumer"]))]
pub struct LimitSubject {
    /// The limit's name in the policy.
    #[arg(long, value_name = "NAME")]
    pub limit: String,
    /// The key, exactly as in decisions; `sluicegate explain` prints the keys of a request.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The key's digits, as `sluicegate top` and Envoy's access log show them. For `peek` and `reset`, on a sidecar
    /// that has denied the key, or seen it near the limit, lately.
    #[arg(long, value_name = "DIGITS")]
    pub subject: Option<String>,
    /// The name of one of the limit's consumers, in place of a key: where `top` shows `consumer acme`, `acme`.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

impl LimitSubject {
    /// The key, unless its digits name it.
    pub fn key(&self) -> Option<String> {
        let of_consumer = self.consumer.as_deref().map(consumer_key);
        self.key.clone().or(of_consumer)
    }

    /// The keys; neither key nor digits: all keys.
    pub fn whom(&self) -> Whom {
        let subject = self.subject.clone().map(Whom::Subject);
        let whom = self.key().map(Whom::Key).or(subject);
        whom.unwrap_or(Whom::AllKeys(true))
    }
}

/// The checks of one decision.
#[derive(clap::Args)]
pub struct Checks {
    /// The limit's name in the policy.
    #[arg(
        long,
        value_name = "NAME",
        requires = "key",
        required_unless_present = "check"
    )]
    pub limit: Option<String>,
    /// The subject's key. Use a name, not a secret: other users of this machine see arguments in the process list.
    #[arg(long, value_name = "KEY", requires = "limit")]
    key: Option<String>,
    /// Units to take.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "limit", value_parser = cost(), allow_negative_numbers = true)]
    cost: u64,
    /// Another limit, key and cost. Either all checks are admitted, or nothing is taken. Can be given several times.
    #[arg(long, value_name = "LIMIT=KEY:COST", value_parser = one)]
    check: Vec<Check<'static>>,
}

impl Checks {
    /// All checks; that of `--limit` comes first.
    pub fn all(&self) -> Vec<Check<'_>> {
        let first = self.limit.as_deref().zip(self.key.as_deref());
        let first = first.map(|(limit, key)| check(limit, key, self.cost));
        first
            .into_iter()
            .chain(self.check.iter().cloned())
            .collect()
    }
}

/// A check with the limit's own quota.
pub fn check<'a>(
    limit: impl Into<Cow<'a, str>>,
    key: impl Into<Cow<'a, str>>,
    cost: u64,
) -> Check<'a> {
    Check {
        limit: limit.into(),
        key: key.into(),
        cost,
        quota: None,
        within_ms: None,
        most: None,
    }
}

/// The argument that has the cost of the check of `--limit`.
pub const COST: Option<&str> = Some("--cost");

/// Parses a cost. A cost of 0 would always be admitted; `peek` is for that.
pub fn cost() -> RangedI64ValueParser<u64> {
    RangedI64ValueParser::new().range(1..)
}

/// Parses units that were used.
pub fn used() -> RangedI64ValueParser<u64> {
    RangedI64ValueParser::new().range(0..=MAX_COST.cast_signed())
}

/// Parses `LIMIT=KEY:COST`. A limit's name contains no `=`; a key may contain `=` and colons.
fn one(text: &str) -> Result<Check<'static>, String> {
    let parts = text.split_once('=').and_then(|(limit, rest)| {
        let (key, cost) = rest.rsplit_once(':')?;
        Some((limit, key, cost.parse().ok().filter(|cost| *cost > 0)?))
    });
    let (limit, key, cost) = parts
        .ok_or("expected LIMIT=KEY:COST with a cost of at least 1, such as yt-quota=cred-1:100")?;
    Ok(check(limit.to_owned(), key.to_owned(), cost))
}

/// The failure for a request error, whose field (`checks[1].cost`, `receipt`) is replaced by the argument that it came from:
/// of checks, the first one's from `--limit` and the argument that has its `cost`, if that is given, and the others' from
/// `--check`.
pub fn refused(problem: &Problem, cost: Option<&str>) -> Failure {
    Failure::usage(by_argument(&problem.message, cost))
}

fn by_argument(message: &str, cost: Option<&str>) -> String {
    let parts = message
        .strip_prefix('`')
        .and_then(|rest| rest.split_once('`'));
    let Some((path, rest)) = parts else {
        return message.to_owned();
    };
    let (within, field) = path.rsplit_once('.').unwrap_or(("", path));
    let cost = cost.filter(|_| within.ends_with("[0]"));
    match (field, cost) {
        ("limit" | "key" | "cost", None) if within.ends_with(']') => format!("`--check`{rest}"),
        ("cost", Some(cost)) => format!("`{cost}`{rest}"),
        ("limit" | "key" | "cost" | "receipt" | "units", _) => format!("`--{field}`{rest}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_of_the_argument_that_has_it() {
        let reserve = Some("--reserve");
        for (message, cost, expected) in [
            ("`checks[0].cost`: 7 is more", COST, "`--cost`: 7 is more"),
            (
                "`checks[0].cost`: 7 is more",
                reserve,
                "`--reserve`: 7 is more",
            ),
            ("`checks[0].key` is empty", reserve, "`--key` is empty"),
            ("`checks[0].cost`: 7 is more", None, "`--check`: 7 is more"),
            ("`checks[1].limit`: no `x`", COST, "`--check`: no `x`"),
            ("`receipt` is not one", COST, "`--receipt` is not one"),
            ("`decisions`: too many", COST, "`decisions`: too many"),
            ("nothing is named", COST, "nothing is named"),
        ] {
            assert_eq!(by_argument(message, cost), expected);
        }
    }

    #[test]
    fn a_check_is_read_from_both_ends_since_keys_may_have_colons_and_equals_signs() {
        let read = |text: &str| {
            one(text).map(|check| (check.limit.into_owned(), check.key.into_owned(), check.cost))
        };
        let owned = |limit: &str, key: &str, cost| Ok((limit.to_owned(), key.to_owned(), cost));
        let quota = owned("yt-quota", "cred-1", 100);
        assert_eq!(read("yt-quota=cred-1:100"), quota);
        assert_eq!(read("l=a=b:c:1"), owned("l", "a=b:c", 1));
        for wrong in ["", "l", "l=k", "l=k:", "l=k:x", "l=k:0", "l=k:-1", "k:1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
