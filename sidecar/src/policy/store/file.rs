//! `store` in YAML: a text, or a mapping with a `url`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    CredentialFiles, DEFAULT_CONNECTIONS, MAX_CONNECTIONS, RedisOptions, StoreAddress, TlsFiles,
};

/// The field's value.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StoreFile {
    /// `memory` or a URL.
    Text(String),
    /// A URL with options.
    Options(Box<OptionsFile>),
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
    tls: Option<TlsFiles>,
    /// a text that is put before every key
    #[serde(default)]
    key_prefix: String,
    /// a whole number from 1 to 16
    #[serde(default = "default_connections")]
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    connections: usize,
    /// a mapping of `username_file` and `password_file`
    #[serde(default)]
    sentinel: Option<CredentialFiles>,
}

const fn default_connections() -> usize {
    DEFAULT_CONNECTIONS
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
        };
        if options.url == "memory" {
            let why =
                "`store` is `memory` with options, which only Redis has: write `store: memory`";
            return Err(why.to_owned());
        }
        let url = options
            .url
            .parse()
            .map_err(|why| format!("`url` of `store` is {why}"))?;
        let read = RedisOptions {
            credentials: CredentialFiles {
                username: options.username_file.clone(),
                password: options.password_file.clone(),
            },
            sentinel: options.sentinel.clone().unwrap_or_default(),
            tls: options.tls.clone().unwrap_or_default(),
            key_prefix: options.key_prefix.clone(),
            connections: options.connections,
        };
        Self::redis(url, read).map_err(|(field, why)| format!("`{field}` of `store`: {why}"))
    }
}
