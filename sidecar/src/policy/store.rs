//! Where the state is kept and how to reach it: the policy's `store`.

mod file;
mod url;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio_rustls::rustls::pki_types::ServerName;

pub(super) use file::{OptionsFile, StoreFile};
pub use url::{Endpoint, RedisUrl, Topology};

/// Default number of connections to each Redis: one works while the other is replaced.
pub const DEFAULT_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 16;
/// Bytes of `key_prefix`: they are part of every key in Redis.
const MAX_PREFIX_BYTES: usize = 64;

/// Where a store keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// In Redis.
    Redis(Box<RedisStore>),
}

/// A Redis and how to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Its address, and perhaps the credentials.
    pub url: RedisUrl,
    /// Everything that is not in the URL.
    pub options: RedisOptions,
}

/// Options of a Redis besides its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// Credentials for Redis, from files.
    pub credentials: CredentialFiles,
    /// Credentials for the sentinels, from files.
    pub sentinel: CredentialFiles,
    /// How TLS verifies the peers.
    pub tls: TlsFiles,
    /// Prefix of every key. Without braces, which would change a key's slot.
    pub key_prefix: String,
    /// Connections to each Redis.
    pub connections: usize,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            credentials: CredentialFiles::default(),
            sentinel: CredentialFiles::default(),
            tls: TlsFiles::default(),
            key_prefix: String::new(),
            connections: DEFAULT_CONNECTIONS,
        }
    }
}

/// Files with a user name and a password. They are read at each connection, so they may change at any time.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct CredentialFiles {
    /// the path of a file with the user name, which is `default` if not given
    #[serde(rename = "username_file")]
    pub username: Option<PathBuf>,
    /// the path of a file with the password
    #[serde(rename = "password_file")]
    pub password: Option<PathBuf>,
}

/// PEM files for TLS, read at each connection, and the expected name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// the path of a file with the certificate authorities to trust, which are the system's if not given
    pub ca: Option<PathBuf>,
    /// the path of a file with the sidecar's certificate and its chain
    pub certificate: Option<PathBuf>,
    /// a text: in `tls` the path of a file, in `overrides` the key of decisions
    pub key: Option<PathBuf>,
    /// the name that the certificate of Redis has, which is the host of the URL if not given
    pub server_name: Option<String>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URL: it may hold a password.
        f.write_str("RedisStore(..)")
    }
}

impl std::str::FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        Self::redis(text.parse()?, RedisOptions::default()).map_err(|(_, why)| why.to_owned())
    }
}

/// The name of an option that does not fit, and a text: the mistake and its remedy.
type Misfit = (&'static str, &'static str);

impl StoreAddress {
    /// Whether the counts are in the same place.
    pub(super) fn is_place_of(&self, other: &Self) -> bool {
        let place = |one: &RedisStore| {
            (
                one.options.key_prefix.clone(),
                one.url.database,
                one.url.topology.clone(),
            )
        };
        matches!((self, other), (Self::Redis(one), Self::Redis(other)) if place(one) == place(other))
    }

    /// This store's options with another URL.
    ///
    /// # Errors
    /// It is not a valid URL, or the options do not fit it. The message has a remedy, never the value.
    pub fn with_url(&self, text: &str) -> Result<Self, String> {
        match (self, text) {
            (_, "memory") | (Self::Memory, _) => text.parse(),
            (Self::Redis(redis), _) => Self::redis(text.parse()?, redis.options.clone())
                .map_err(|(field, why)| format!("{why}; see the policy's `store.{field}`")),
        }
    }

    /// Combines a URL with options.
    ///
    /// # Errors
    /// They do not fit each other.
    fn redis(url: RedisUrl, options: RedisOptions) -> Result<Self, Misfit> {
        let error = |field, why| Err((field, why));
        let files = &options.credentials;
        let named = url.username.is_some() || url.password.is_some();
        if named && (files.username.is_some() || files.password.is_some()) {
            let why = "user and password are given both in the URL and in files: give them once";
            return error("password_file", why);
        }
        if files.username.is_some() && files.password.is_none() {
            return error("username_file", "`password_file` is missing");
        }
        let sentinel = &options.sentinel;
        if sentinel.username.is_some() && sentinel.password.is_none() {
            return error("sentinel", "`username_file` without `password_file`");
        }
        if *sentinel != CredentialFiles::default()
            && !matches!(url.topology, Topology::Sentinel { .. })
        {
            return error("sentinel", "requires a `redis+sentinel://` URL");
        }
        let tls = &options.tls;
        if *tls != TlsFiles::default() && !url.tls {
            let why = "requires a `rediss://`, `rediss+sentinel://` or `rediss+cluster://` URL";
            return error("tls", why);
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return error("tls", "`certificate` and `key` must be given together");
        }
        let name = tls.server_name.as_deref();
        if name.is_some_and(|name| ServerName::try_from(name).is_err()) {
            return error("tls", "`server_name` is neither a host name nor an address");
        }
        let prefix = &options.key_prefix;
        if prefix.len() > MAX_PREFIX_BYTES
            || !prefix.chars().all(|c| c.is_ascii_graphic())
            || prefix.contains(['{', '}'])
        {
            let why = "must be at most 64 printable ASCII characters without spaces and braces (braces would change where Redis Cluster keeps a key)";
            return error("key_prefix", why);
        }
        if !(1..=MAX_CONNECTIONS).contains(&options.connections) {
            return error("connections", "must be a number from 1 to 16");
        }
        Ok(Self::Redis(Box::new(RedisStore { url, options })))
    }
}
