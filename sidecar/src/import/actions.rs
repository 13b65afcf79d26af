//! What `rate_limits` send to ratelimit of a request. A field or action that is not here has no counterpart in the policy.

use serde::Deserialize;
use serde_json::{Value, json};

use super::matchers::{Matcher, all};
use super::scope::{Scope, header};

/// An entry of `rate_limits`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    #[serde(default)]
    pub stage: u32,
    pub actions: Vec<Action>,
    #[serde(default)]
    pub hits_addend: Hits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hits {
    pub number: u64,
}

impl Default for Hits {
    fn default() -> Self {
        Self { number: 1 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Action {
    SourceCluster {},
    DestinationCluster {},
    RemoteAddress {},
    MaskedRemoteAddress {
        v4_prefix_mask_len: Option<u8>,
        v6_prefix_mask_len: Option<u8>,
    },
    GenericKey {
        descriptor_value: String,
        descriptor_key: Option<String>,
    },
    RequestHeaders {
        header_name: String,
        descriptor_key: String,
    },
    QueryParameters {
        query_parameter_name: String,
        descriptor_key: String,
    },
    #[serde(alias = "dynamic_metadata")]
    Metadata {
        descriptor_key: String,
        metadata_key: MetadataKey,
    },
    HeaderValueMatch {
        descriptor_value: String,
        descriptor_key: Option<String>,
        expect_match: Option<bool>,
        headers: Vec<Matcher>,
    },
    QueryParameterValueMatch {
        descriptor_value: String,
        descriptor_key: Option<String>,
        expect_match: Option<bool>,
        query_parameters: Vec<Matcher>,
    },
}

#[derive(Deserialize)]
pub struct MetadataKey {
    key: String,
    path: Vec<PathPart>,
}

#[derive(Deserialize)]
struct PathPart {
    key: String,
}

/// An entry of a descriptor: a key and its value.
pub enum Entry {
    /// Always the same; sent for these requests.
    Constant(String, String, Scope),
    /// What requests have, as a component of a key.
    Told(String, Value),
}

impl Action {
    /// What it sends, with the names of Envoy's own cluster and the upstream's.
    ///
    /// # Errors
    /// Why the policy cannot say that.
    pub fn entry(&self, [source, destination]: [Option<&str>; 2]) -> Result<Entry, String> {
        let constant = |key: &str, value: &str, scope| {
            Entry::Constant(key.to_owned(), value.to_owned(), scope)
        };
        let matched = |key: &Option<String>,
                       default: &str,
                       value: &str,
                       expect: Option<bool>,
                       found: Scope| {
            let scope = match expect {
                Some(false) => Scope::default().without(&found),
                _ => found,
            };
            constant(key.as_deref().unwrap_or(default), value, scope)
        };
        let cluster = |key: &str, name: Option<&str>| {
            let why = || format!("`{key}`: the Envoy file does not say which cluster that is");
            name.map(|name| constant(key, name, Scope::default()))
                .ok_or_else(why)
        };
        let told = |key: &str, component| Entry::Told(key.to_owned(), component);
        Ok(match self {
            Self::SourceCluster {} => cluster("source_cluster", source)?,
            Self::DestinationCluster {} => cluster("destination_cluster", destination)?,
            Self::RemoteAddress {} => told("remote_address", json!("address")),
            Self::MaskedRemoteAddress {
                v4_prefix_mask_len: v4,
                v6_prefix_mask_len: v6,
            } => {
                let bits = json!({ "ipv4_bits": v4.unwrap_or(32), "ipv6_bits": v6.unwrap_or(128) });
                told("masked_remote_address", json!({ "address": bits }))
            }
            Self::GenericKey {
                descriptor_value: value,
                descriptor_key: key,
            } => matched(key, "generic_key", value, None, Scope::default()),
            Self::RequestHeaders {
                header_name,
                descriptor_key,
            } => told(descriptor_key, header(header_name)),
            Self::QueryParameters {
                query_parameter_name,
                descriptor_key,
            } => told(descriptor_key, json!({ "query": query_parameter_name })),
            Self::Metadata {
                descriptor_key,
                metadata_key: MetadataKey { key, path },
            } => {
                let path: Vec<_> = path.iter().map(|part| &part.key).collect();
                told(
                    descriptor_key,
                    json!({ "metadata": { "namespace": key, "name": path } }),
                )
            }
            Self::HeaderValueMatch {
                descriptor_value: value,
                descriptor_key: key,
                expect_match,
                headers,
            } => matched(
                key,
                "header_match",
                value,
                *expect_match,
                all(headers, &[])?,
            ),
            Self::QueryParameterValueMatch {
                descriptor_value: value,
                descriptor_key: key,
                expect_match,
                query_parameters,
            } => matched(
                key,
                "query_match",
                value,
                *expect_match,
                all(&[], query_parameters)?,
            ),
        })
    }
}
