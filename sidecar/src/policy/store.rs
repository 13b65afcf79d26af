//! Where the state is kept, and how it is reached: the policy's `store`.

mod file;
mod url;

use std::path::PathBuf;

use tokio_rustls::rustls::pki_types::ServerName;

pub(super) use file::StoreFile;
pub use url::{Endpoint, RedisUrl, Topology};

/// Connections to each Redis unless the policy says otherwise: while one is replaced there is another.
pub const DEFAULT_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 16;
/// Bytes of `key_prefix`: they are part of every key in Redis.
const MAX_PREFIX_BYTES: usize = 64;

/// Where a store keeps its state.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// In Redis.
    Redis(Box<RedisStore>),
}

/// A Redis, and how to talk to it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where it is, and perhaps who asks.
    pub url: RedisUrl,
    /// All that is not in the URL.
    pub options: RedisOptions,
}

/// Options of a Redis beside its URL.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// Who asks Redis, from files.
    pub credentials: CredentialFiles,
    /// Who asks the sentinels, from files.
    pub sentinel: CredentialFiles,
    /// How the peers are recognized.
    pub tls: TlsFiles,
    /// What stands before every key. Without braces: they would change a key's slot.
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

/// Files with a user and a password. They are read at each connection, so they may change at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The user; `default` without one.
    pub username: Option<PathBuf>,
    /// The password.
    pub password: Option<PathBuf>,
}

/// PEM files for TLS, read at each connection, and the name to expect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities to trust; the system's without it.
    pub ca: Option<PathBuf>,
    /// Our certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The name that a certificate has to have; the host of the URL without it.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URL: it may hold a password.
        f.write_str(match self {
            Self::Memory => "Memory",
            Self::Redis(_) => "Redis(..)",
        })
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisStore(..)")
    }
}

impl std::str::FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let url = text.parse()?;
        RedisStore::new(url, RedisOptions::default())
            .map(|store| Self::Redis(Box::new(store)))
            .map_err(|fault| fault.why)
    }
}

impl StoreAddress {
    /// Another URL with the same options.
    ///
    /// # Errors
    /// It is no URL, or the options do not go with it: a remedy without the value.
    pub fn with_url(&self, text: &str) -> Result<Self, String> {
        match (self, text) {
            (_, "memory") | (Self::Memory, _) => text.parse(),
            (Self::Redis(redis), _) => RedisStore::new(text.parse()?, redis.options.clone())
                .map(|store| Self::Redis(Box::new(store)))
                .map_err(|fault| fault.to_string()),
        }
    }
}

/// An option that cannot be used.
#[derive(Debug)]
pub struct Fault {
    /// Its name; `url` where that is to blame.
    pub field: &'static str,
    /// What is wrong and what to do.
    pub why: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; see the policy's `store.{}`", self.why, self.field)
    }
}

impl RedisStore {
    /// A URL with options that go with it.
    ///
    /// # Errors
    /// They do not.
    pub fn new(url: RedisUrl, options: RedisOptions) -> Result<Self, Fault> {
        let fault = |field, why: &str| {
            Err(Fault {
                field,
                why: why.to_owned(),
            })
        };
        let files = &options.credentials;
        let named = url.username.is_some() || url.password.is_some();
        if named && (files.username.is_some() || files.password.is_some()) {
            return fault(
                "password_file",
                "user and password are in the URL and in files: name them once",
            );
        }
        if files.username.is_some() && files.password.is_none() {
            return fault("username_file", "a user without `password_file`");
        }
        let sentinel = &options.sentinel;
        if sentinel.username.is_some() && sentinel.password.is_none() {
            return fault("sentinel", "a user without `password_file`");
        }
        if *sentinel != CredentialFiles::default()
            && !matches!(url.topology, Topology::Sentinel { .. })
        {
            return fault("sentinel", "it needs a URL of `redis+sentinel://`");
        }
        let tls = &options.tls;
        if *tls != TlsFiles::default() && !url.tls {
            return fault(
                "tls",
                "it needs a URL of `rediss://`, `rediss+sentinel://` or `rediss+cluster://`",
            );
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return fault("tls", "`certificate` and `key` go together: name both");
        }
        let name = tls.server_name.as_deref();
        if name.is_some_and(|name| ServerName::try_from(name).is_err()) {
            return fault("tls", "`server_name` is no name and no address of a host");
        }
        let prefix = &options.key_prefix;
        if prefix.len() > MAX_PREFIX_BYTES
            || !prefix.chars().all(|c| c.is_ascii_graphic())
            || prefix.contains(['{', '}'])
        {
            return fault(
                "key_prefix",
                "up to 64 characters of ASCII without spaces and braces, which would change where Redis Cluster keeps a key",
            );
        }
        if !(1..=MAX_CONNECTIONS).contains(&options.connections) {
            return fault("connections", "a number from 1 to 16");
        }
        Ok(Self { url, options })
    }
}
