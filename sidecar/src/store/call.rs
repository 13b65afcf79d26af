//! Calls of the script on any connection, of one Redis or of a Cluster. Every key of a call is in one slot.

use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, Script, ServerErrorKind};
use sluicegate_engine::script::{self, BrokenState, GiveBack, Reply};
use sluicegate_engine::{Batch, Outcome, Returns};

use super::error::StoreError;

/// The script, with its SHA-1 at hand.
pub fn script() -> Script {
    Script::new(script::DECIDE)
}

/// For each decision its outcome, unless a key of it cannot be read.
pub type Each = Vec<Result<Outcome, BrokenState>>;

/// Decides a batch.
pub async fn decide(
    connection: &mut impl ConnectionLike,
    script: &Script,
    batch: &Batch,
) -> Result<Each, StoreError> {
    if batch.decisions.is_empty() {
        return Ok(Vec::new());
    }
    let reply = invoke(
        connection,
        script,
        script::keys(batch),
        script::arguments(batch, None),
    )
    .await?;
    done(script::outcomes(batch, &reply).map_err(StoreError::Reply)?)
}

/// Gives back, no bucket twice.
pub async fn give_back(
    connection: &mut impl ConnectionLike,
    script: &Script,
    returns: &[GiveBack<'_>],
) -> Result<Vec<u64>, StoreError> {
    let keys = script::give_back_keys(returns);
    let reply = invoke(
        connection,
        script,
        keys,
        script::give_back_arguments(returns, None),
    )
    .await?;
    let each = done(script::returned(returns, &reply).map_err(StoreError::Reply)?)?;
    each.into_iter()
        .map(|returned| returned.map_err(StoreError::State))
        .collect()
}

fn done<T>(reply: Reply<T>) -> Result<Vec<Result<T, BrokenState>>, StoreError> {
    match reply {
        Reply::Done { each, .. } => Ok(each),
        Reply::Late { .. } => Err(StoreError::Late),
    }
}

/// Returns units by receipts.
pub async fn return_units(
    connection: &mut impl ConnectionLike,
    script: &Script,
    returns: &Returns,
) -> Result<Vec<u64>, StoreError> {
    let (keys, arguments) = (
        script::return_keys(returns),
        script::return_arguments(returns, None),
    );
    let reply = invoke(connection, script, keys, arguments).await?;
    let each = done(script::returned_units(returns, &reply).map_err(StoreError::Reply)?)?;
    // What cannot be read holds nothing that could come back.
    Ok(each.into_iter().map(Result::unwrap_or_default).collect())
}

/// Makes one bucket whole; whether it held anything.
pub async fn reset(connection: &mut impl ConnectionLike, key: &str) -> Result<bool, StoreError> {
    redis::cmd("UNLINK")
        .arg(key)
        .query_async(connection)
        .await
        .map_err(classify)
}

async fn invoke<'a>(
    connection: &mut impl ConnectionLike,
    script: &Script,
    keys: impl Iterator<Item = &'a str>,
    arguments: Vec<Vec<u8>>,
) -> Result<Vec<u8>, StoreError> {
    let mut call = script.prepare_invoke();
    for key in keys {
        call.key(key);
    }
    for argument in arguments {
        call.arg(argument);
    }
    // Sends EVALSHA, and the script itself only when Redis has lost it.
    call.invoke_async(connection).await.map_err(classify)
}

pub fn classify(error: RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain,
        ) => StoreError::Connection(error),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
            StoreError::Refused(error)
        }
        _ => StoreError::Connection(error),
    }
}
