//! Whether a proxy spreads the keys over several Redis by their hash tags. It would send each batch to where the first of its
//! keys is, so that the others are counted in the wrong place, and once in each.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};

use super::connection::Connection;
use crate::store::error::StoreError;

/// Keys with a tag each. Over two Redis, all of them are in one place once in 32,768 times.
const MARKS: usize = 16;
/// Longer than one check takes.
const MARK_TTL: Duration = Duration::from_secs(10);
/// Answers how many of the keys exist where the first of them is, which determines where the call is sent.
const LOOK: &str = "local held = 0
for _, key in ipairs(KEYS) do held = held + (redis.call('GET', key) and 1 or 0) end
return held";

/// Whether two looks in a row tell that keys are spread: a failover during one has the same effect. A Cluster is meant to spread them.
///
/// # Errors
/// Redis does not answer, or refuses a command.
pub async fn is_sharded(connection: &Connection) -> Result<bool, StoreError> {
    let looks = !connection.common.is_cluster();
    Ok(looks && look(connection).await? && look(connection).await?)
}

/// Writes marks, each with a tag of its own, and counts them in one call, which a proxy sends to the first mark's server, and in a
/// command for each. If the call finds fewer marks than the commands together, the proxy spreads the keys.
async fn look(connection: &Connection) -> Result<bool, StoreError> {
    let deadline = connection.patience();
    // Keys that no earlier check has used, since marks that it left prove nothing now.
    let look_number = RandomState::new().hash_one(());
    let marks: Vec<_> = (0..MARKS)
        .map(|number| format!("sg:{{mark-{look_number}-{number}}}:probe"))
        .map(|mark| connection.common.script.key(&mark))
        .collect();
    let marked = marks.iter().map(|mark| async move {
        let mut set = redis::cmd("SET");
        set.arg(mark).arg(1).arg("PX").arg(MARK_TTL.as_millis());
        connection.ask::<()>(&set, false, deadline).await
    });
    try_join_all(marked).await?;
    let mut together = redis::cmd("EVAL");
    together.arg(LOOK).arg(marks.len()).arg(&marks);
    let alone = marks.iter().map(|mark| async move {
        let mut get = redis::cmd("GET");
        get.arg(mark);
        connection.ask::<Option<u8>>(&get, false, deadline).await
    });
    let together = connection.ask::<usize>(&together, false, deadline);
    let (together, alone) = try_join(together, try_join_all(alone)).await?;
    Ok(together < alone.into_iter().flatten().count())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;
    use crate::policy::{Endpoint, RedisOptions, RedisStore};
    use crate::store::redis::common::Common;

    /// A proxy in front of so many Redis, in what a look needs; they may lose what they are told.
    fn serve(stream: TcpStream, count: usize, loses: bool) {
        let mut shards = vec![HashSet::new(); count];
        let of = |key: &str| key.bytes().map(usize::from).sum::<usize>() % count;
        let mut stream = BufReader::new(stream);
        while let Some(words) = read(&mut stream) {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let answer = match words.as_slice() {
                ["SET", key, ..] => {
                    if !loses {
                        shards[of(key)].insert((*key).to_owned());
                    }
                    "+OK\r\n".to_owned()
                }
                ["GET", key] if shards[of(key)].contains(*key) => "$1\r\n1\r\n".to_owned(),
                ["GET", _] => "$-1\r\n".to_owned(),
                ["EVAL", _, _, keys @ ..] => {
                    let shard = &shards[of(keys[0])];
                    let held = keys.iter().filter(|key| shard.contains(**key));
                    format!(":{}\r\n", held.count())
                }
                _ => "+OK\r\n".to_owned(),
            };
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    }

    /// The words of a command, until the connection ends.
    fn read(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
        let count = length(stream, '*')?;
        let mut words = Vec::new();
        for _ in 0..count {
            let mut word = vec![0; length(stream, '$')? + 2];
            stream.read_exact(&mut word).ok()?;
            words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
        }
        Some(words)
    }

    fn length(stream: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        line.trim().strip_prefix(mark)?.parse().ok()
    }

    async fn look_at(shards: usize, loses: bool) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0, shards, loses));
        let store = RedisStore {
            url: format!("redis://{address}").parse().unwrap(),
            options: RedisOptions {
                key_prefix: "edge/".to_owned(),
                ..RedisOptions::default()
            },
        };
        let patience = Duration::from_secs(60);
        let common = Arc::new(Common::new(&store, patience, Arc::default()));
        let endpoint = Endpoint::Tcp(address.ip().to_string(), address.port());
        let connection = Connection::open(&common, &endpoint, None).await.unwrap();
        let sharded = is_sharded(&connection).await;
        sharded.unwrap()
    }

    #[tokio::test]
    async fn marks_that_only_their_own_tags_show_are_those_of_a_proxy_that_shards() {
        for (shards, expected) in [(1, false), (2, true), (3, true), (7, true)] {
            assert_eq!(look_at(shards, false).await, expected, "{shards} shards");
        }
    }

    #[tokio::test]
    async fn marks_that_are_lost_are_no_sharding() {
        assert!(!look_at(3, true).await);
    }
}
