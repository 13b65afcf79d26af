//! `store` in YAML: a text, or a mapping with a `url`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{
    CredentialFiles, DEFAULT_CONNECTIONS, MAX_CONNECTIONS, OptionError, RedisOptions, RedisStore,
    StoreAddress, TlsFiles,
};

/// The field's value.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum StoreFile {
    /// `memory` or a URL.
    Text(String),
    /// A URL with options.
    Options(Box<OptionsFile>),
    /// The kind of a value that is not allowed.
    #[schemars(skip)]
    Other(&'static str),
}

/// `store` as a mapping.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptionsFile {
    /// the URL of a Redis, `"redis://HOST:PORT"`
    url: String,
    /// the path of a file
    #[serde(default)]
    username_file: Option<PathBuf>,
    /// the path of a file
    #[serde(default)]
    password_file: Option<PathBuf>,
    /// a mapping of `ca`, `certificate`, `key` and `server_name`
    #[serde(default)]
    tls: Option<TlsFile>,
    /// a text that is put before every key
    #[serde(default)]
    key_prefix: String,
    /// a whole number from 1 to 16
    #[serde(default = "default_connections")]
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    connections: usize,
    /// a mapping of `username_file` and `password_file`
    #[serde(default)]
    sentinel: Option<SentinelFile>,
}

const fn default_connections() -> usize {
    DEFAULT_CONNECTIONS
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TlsFile {
    /// the path of a file
    #[serde(default)]
    ca: Option<PathBuf>,
    /// the path of a file
    #[serde(default)]
    certificate: Option<PathBuf>,
    /// the path of a file
    #[serde(default)]
    key: Option<PathBuf>,
    /// the name in the certificate of Redis
    #[serde(default)]
    server_name: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SentinelFile {
    /// the path of a file
    #[serde(default)]
    username_file: Option<PathBuf>,
    /// the path of a file
    #[serde(default)]
    password_file: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for StoreFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = StoreFile;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or a mapping")
            }

            fn visit_str<E>(self, text: &str) -> Result<StoreFile, E> {
                Ok(StoreFile::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StoreFile, A::Error> {
                OptionsFile::deserialize(MapAccessDeserializer::new(map))
                    .map(|options| StoreFile::Options(Box::new(options)))
            }

            // The library's own errors for other kinds would have the location of the enclosing value.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StoreFile, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(StoreFile::Other("a list"))
            }

            fn visit_bool<E>(self, _: bool) -> Result<StoreFile, E> {
                Ok(StoreFile::Other("a boolean"))
            }

            fn visit_i64<E>(self, _: i64) -> Result<StoreFile, E> {
                Ok(StoreFile::Other("a number"))
            }

            fn visit_u64<E>(self, _: u64) -> Result<StoreFile, E> {
                Ok(StoreFile::Other("a number"))
            }

            fn visit_f64<E>(self, _: f64) -> Result<StoreFile, E> {
                Ok(StoreFile::Other("a number"))
            }

            fn visit_unit<E>(self) -> Result<StoreFile, E> {
                Ok(StoreFile::Other("nothing"))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl TryFrom<&StoreFile> for StoreAddress {
    /// What `store` is, and what it should be.
    type Error = String;

    fn try_from(file: &StoreFile) -> Result<Self, String> {
        let options = match file {
            StoreFile::Text(text) => {
                let address = text.parse::<Self>();
                return address.map_err(|why| format!("`store` is {why}"));
            }
            StoreFile::Options(options) => options,
            StoreFile::Other(what) => {
                return Err(format!(
                    "`store` is {what}: give `memory`, a URL such as `\"redis://HOST:PORT\"`, or a mapping with a `url`"
                ));
            }
        };
        if options.url == "memory" {
            return Err(
                "`store` is `memory` with options, which only Redis has: write `store: memory`"
                    .to_owned(),
            );
        }
        let url = options
            .url
            .parse()
            .map_err(|why| format!("`url` of `store` is {why}"))?;
        let (tls, sentinel) = (options.tls.as_ref(), options.sentinel.as_ref());
        let read = RedisOptions {
            credentials: CredentialFiles {
                username: options.username_file.clone(),
                password: options.password_file.clone(),
            },
            sentinel: sentinel.map_or_else(CredentialFiles::default, |file| CredentialFiles {
                username: file.username_file.clone(),
                password: file.password_file.clone(),
            }),
            tls: tls.map_or_else(TlsFiles::default, |file| TlsFiles {
                ca: file.ca.clone(),
                certificate: file.certificate.clone(),
                key: file.key.clone(),
                server_name: file.server_name.clone(),
            }),
            key_prefix: options.key_prefix.clone(),
            connections: options.connections,
        };
        RedisStore::new(url, read)
            .map(|store| Self::Redis(Box::new(store)))
            .map_err(|OptionError { field, why }| format!("`{field}` of `store`: {why}"))
    }
}
