//! The script as commands, on any connection. Every key of a call is in one slot.

use redis::{Cmd, Script as Hashed};
use sluicegate_engine::script::{self, GiveBack, ReplyError};
use sluicegate_engine::{Batch, Outcome};

/// The script, with its SHA-1 at hand, and what stands before every key.
pub struct Script {
    hash: String,
    prefix: String,
}

/// One call of the script: its keys, and its arguments for a time after which it must not run.
pub struct Request<'a> {
    keys: Vec<&'a str>,
    arguments: Arguments<'a>,
}

enum Arguments<'a> {
    Decide(&'a Batch),
    GiveBack(&'a [GiveBack<'a>]),
}

/// What a reply says, and Redis's clock when it was made.
pub struct Told<T> {
    /// One for each decision or bucket.
    pub each: Vec<T>,
    /// Microseconds.
    pub now_us: Option<u64>,
}

impl<'a> Request<'a> {
    /// Decides a batch.
    pub fn decide(batch: &'a Batch) -> Self {
        Self {
            keys: script::keys(batch).collect(),
            arguments: Arguments::Decide(batch),
        }
    }

    /// Gives back, no bucket twice.
    pub fn give_back(returns: &'a [GiveBack<'a>]) -> Self {
        Self {
            keys: script::give_back_keys(returns).collect(),
            arguments: Arguments::GiveBack(returns),
        }
    }

    /// The key that says where in a Cluster the call belongs.
    pub fn first_key(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }
}

/// The outcomes of a batch.
pub fn outcomes(batch: &Batch, reply: &[u8]) -> Result<Told<Outcome>, ReplyError> {
    let each = script::outcomes(batch, reply)?;
    let now_us = each.last().map(|outcome| outcome.at_us);
    Ok(Told { each, now_us })
}

/// The units returned to each bucket.
pub fn returned(returns: &[GiveBack<'_>], reply: &[u8]) -> Result<Told<u64>, ReplyError> {
    let each = script::returned(returns, reply)?;
    Ok(Told { each, now_us: None })
}

impl Script {
    /// With this before every key.
    pub fn new(prefix: &str) -> Self {
        Self {
            hash: Hashed::new(script::DECIDE).get_hash().to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    /// The call by the script's hash: Redis refuses it where it does not have the script, and then has done nothing.
    pub fn by_hash(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
        self.command("EVALSHA", &self.hash, request, not_after_us)
    }

    /// The call with the script itself, which Redis then keeps.
    pub fn whole(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
        self.command("EVAL", script::DECIDE, request, not_after_us)
    }

    fn command(
        &self,
        name: &str,
        script: &str,
        request: &Request<'_>,
        _not_after_us: Option<u64>,
    ) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(request.keys.len());
        if self.prefix.is_empty() {
            command.arg(&request.keys);
        } else {
            for key in &request.keys {
                command.arg(self.key(key));
            }
        }
        let arguments = match request.arguments {
            Arguments::Decide(batch) => script::arguments(batch),
            Arguments::GiveBack(returns) => script::give_back_arguments(returns),
        };
        command.arg(arguments);
        command
    }

    /// Makes a bucket whole.
    pub fn reset(&self, key: &str) -> Cmd {
        let mut command = redis::cmd("UNLINK");
        command.arg(self.key(key));
        command
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}
