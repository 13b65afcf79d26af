//! The URL of a Redis: parsed strictly, and never quoted in an error, since it may hold a password.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use reqwest::Url;

/// Where a Redis or a sentinel listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A host name or address, without brackets, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// How Redis is deployed.
#[derive(Clone, PartialEq, Eq)]
pub enum Topology {
    /// A single Redis.
    Single(Endpoint),
    /// A primary with replicas; sentinels know its address.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Endpoint>,
        /// The name of the primary in the sentinels' configuration.
        name: String,
    },
    /// Some of the nodes of a Redis Cluster.
    Cluster(Vec<Endpoint>),
}

/// The contents of a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// How Redis is deployed, and where.
    pub topology: Topology,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The number of the database.
    pub database: u32,
    /// The user name, if given.
    pub username: Option<String>,
    /// The password, if given.
    pub password: Option<String>,
}

const FORMS: &str = "`redis://HOST:PORT`, `rediss://HOST:PORT` (with TLS), `redis+unix:///PATH`, \
     `redis+sentinel://HOST:PORT,HOST:PORT/NAME` or `redis+cluster://HOST:PORT,HOST:PORT` \
     (`rediss+sentinel`, `rediss+cluster` with TLS)";
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl std::str::FromStr for RedisUrl {
    /// Why it is invalid; quotes nothing of it.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("neither `memory` nor a URL: use {FORMS}"))?;
        if scheme == "redis+unix" {
            return unix(rest).map_err(str::to_owned);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if rest.contains(['?', '#']) {
            return Err(
                "a URL with `?` or `#`: options are fields beside `url`; in a user or password write `%3F` and `%23`"
                    .to_owned(),
            );
        }
        let (username, password, hosts) = credentials(authority)?;
        let tls = scheme.starts_with("rediss");
        let (topology, database) = match scheme {
            "redis" | "rediss" if hosts.contains(',') => {
                return Err(
                    "a single Redis with several hosts: use `redis+cluster://` or `redis+sentinel://`"
                        .to_owned(),
                );
            }
            "redis" | "rediss" => (
                Topology::Single(endpoint(hosts, REDIS_PORT)?),
                database_number(path)?,
            ),
            "redis+sentinel" | "rediss+sentinel" => {
                let (name, database) = sentinel_path(path)?;
                let sentinels = host_list(hosts, SENTINEL_PORT)?;
                (Topology::Sentinel { sentinels, name }, database)
            }
            "redis+cluster" | "rediss+cluster" => {
                if !matches!(path, "" | "0") {
                    return Err(
                        "a Redis Cluster with a path: a Cluster has only database 0".to_owned()
                    );
                }
                (Topology::Cluster(host_list(hosts, REDIS_PORT)?), 0)
            }
            _ => return Err(format!("a URL with an unknown scheme: use {FORMS}")),
        };
        Ok(Self {
            topology,
            tls,
            database,
            username,
            password,
        })
    }
}

/// `/PATH?db=N&user=U&pass=P`, the same form as in the redis crate.
fn unix(rest: &str) -> Result<RedisUrl, &'static str> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err("a Unix socket without an absolute path: `redis+unix:///PATH`");
    }
    let mut url = RedisUrl {
        topology: Topology::Single(Endpoint::Unix(percent_decoded(path)?.into())),
        tls: false,
        database: 0,
        username: None,
        password: None,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "db" => url.database = database_number(value)?,
            "user" => url.username = Some(percent_decoded(value)?),
            "pass" => url.password = Some(percent_decoded(value)?),
            _ => {
                return Err(
                    "a Unix socket with an unknown parameter: valid are `db`, `user` and `pass`",
                );
            }
        }
    }
    if url.username.is_some() && url.password.is_none() {
        return Err("a URL with a user and no password");
    }
    Ok(url)
}

/// User, password, and the hosts after them.
fn credentials(authority: &str) -> Result<(Option<String>, Option<String>, &str), &'static str> {
    let Some((userinfo, hosts)) = authority.rsplit_once('@') else {
        return Ok((None, None, authority));
    };
    if userinfo.contains('@') {
        return Err(
            "a URL with more than one `@`: give user and password once, before the first host, and write an `@` in them as `%40`",
        );
    }
    let Some((user, password)) = userinfo.split_once(':') else {
        return Err("a URL with a user and no password: `USER:PASSWORD@`");
    };
    let user = match user {
        "" => None,
        user => Some(percent_decoded(user)?),
    };
    let password = match password {
        "" if user.is_none() => None,
        password => Some(percent_decoded(password)?),
    };
    Ok((user, password, hosts))
}

fn host_list(hosts: &str, port: u16) -> Result<Vec<Endpoint>, String> {
    hosts.split(',').map(|host| endpoint(host, port)).collect()
}

fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, String> {
    let url =
        Url::parse(&format!("redis://{text}")).map_err(|error| format!("a URL with an {error}"))?;
    let host = match url.host_str() {
        // The library encodes what is not ASCII.
        Some(host) if !host.contains('%') => host.trim_matches(['[', ']']).to_owned(),
        _ => return Err("a URL without a host, or with an invalid one".to_owned()),
    };
    match url.port().unwrap_or(default_port) {
        0 => Err("a URL whose port is not a number from 1 to 65535".to_owned()),
        port => Ok(Endpoint::Tcp(host, port)),
    }
}

/// The number of a database; empty means 0.
fn database_number(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse()
        .map_err(|_| "a URL whose database is not a number: `redis://HOST:PORT/0`")
}

/// `NAME` or `NAME/DATABASE`.
fn sentinel_path(path: &str) -> Result<(String, u32), &'static str> {
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let name = percent_decoded(name)?;
    if name.is_empty() {
        return Err("a sentinel URL without the primary's name: `redis+sentinel://HOST:PORT/NAME`");
    }
    Ok((name, database_number(database)?))
}

/// Decodes percent-encoding.
fn percent_decoded(text: &str) -> Result<String, &'static str> {
    let is_code = |rest: &str| {
        let digits = rest.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // The library leaves such a `%` as it is.
    if !text.split('%').skip(1).all(is_code) {
        return Err(
            "a URL with a `%` without two hexadecimal digits after it: write `%25` for a literal `%`",
        );
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| "a URL that is not UTF-8 when decoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> RedisUrl {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp(host.to_owned(), port)
    }

    #[test]
    fn each_form_is_parsed() {
        let url = read("rediss://us%40er:p%2Fw%3Ax@[::1]:6380/7");
        assert!(url.topology == Topology::Single(tcp("::1", 6380)));
        assert_eq!((url.tls, url.database), (true, 7));
        assert_eq!(url.username.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_deref(), Some("p/w:x"));
        let url = read("redis://:secret@redis");
        assert!(url.topology == Topology::Single(tcp("redis", 6379)));
        assert_eq!((url.tls, url.username), (false, None));
        let url = read("redis+sentinel://a,b:5/main/2");
        let Topology::Sentinel { sentinels, name } = url.topology else {
            panic!("not sentinels");
        };
        assert_eq!(sentinels, [tcp("a", 26379), tcp("b", 5)]);
        assert_eq!((name.as_str(), url.database), ("main", 2));
        let url = read("rediss+cluster://u:p@a,b:7000");
        assert!(url.topology == Topology::Cluster(vec![tcp("a", 6379), tcp("b", 7000)]));
        assert!(url.tls && url.password.as_deref() == Some("p"));
        let url = read("redis+unix:///run/redis.sock?db=3&pass=p");
        assert!(url.topology == Topology::Single(Endpoint::Unix("/run/redis.sock".into())));
        assert_eq!((url.database, url.password.as_deref()), (3, Some("p")));
    }

    #[test]
    fn every_mistake_is_described_without_the_value() {
        let mistakes = [
            ("hunter2", "neither `memory` nor a URL"),
            ("rediss//:hunter2@h", "neither `memory` nor a URL"),
            ("http://hunter2", "scheme"),
            ("Redis://hunter2", "scheme"),
            ("redis://", "without a host"),
            ("redis://:hunter2", "empty host"),
            ("redis://user:hunter2", "port"),
            ("redis://h:hunter2", "port"),
            ("redis://h:0", "port"),
            ("redis://h\u{e9}", "invalid"),
            ("redis://hunter2@h", "no password"),
            ("redis://u:hunt@er2@h", "more than one `@`"),
            ("redis://u:hunter2/@h", "port"),
            ("redis://u:hunter2?@h", "`%3F`"),
            ("redis://h/hunter2", "database"),
            ("redis://h/-1", "database"),
            ("redis://h/0/hunter2", "database"),
            ("redis://h?db=hunter2", "beside `url`"),
            ("redis://h,hunter2", "several hosts"),
            ("redis://u:%hunter2@h", "`%25`"),
            ("redis://u:%ff@h", "UTF-8"),
            ("redis://[hunter2]", "IPv6"),
            ("redis://[::1", "IPv6"),
            ("redis://hun ter2", "invalid"),
            ("redis+unix://hunter2", "absolute path"),
            ("redis+unix:///p?hunter2=1", "`pass`"),
            ("redis+unix:///p?user=hunter2", "no password"),
            ("redis+cluster://a,", "without a host"),
            ("redis+cluster://:hunter2@a,:hunter2@b", "more than one `@`"),
            ("redis+cluster://a/1", "database 0"),
            ("redis+sentinel://a:1", "name"),
            ("redis+sentinel://a:1/n/hunter2", "database"),
        ];
        for (text, named) in mistakes {
            let why = text.parse::<RedisUrl>().err();
            let why = why.unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(why.contains(named), "{text}: {why}");
            assert!(!why.contains("hunt"), "{text}: {why}");
        }
    }
}
