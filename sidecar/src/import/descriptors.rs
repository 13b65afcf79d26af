//! ratelimit's files: domains and their descriptors, and most of what it refuses.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use sluicegate_engine::MAX_UNITS;

use super::Document;
use crate::yaml::get;

/// Longest names, without what makes them different.
const MAX_NAME: usize = 60;

/// ratelimit's units of time, and ours.
const UNITS: &str = "second 1s,minute 1m,hour 1h,day 24h,week 7d,month 30d,year 365d";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    #[serde(rename = "domain")]
    pub name: String,
    #[serde(default)]
    pub descriptors: Vec<Descriptor>,
}

/// What only concerns metrics is not read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    key: String,
    #[serde(default)]
    value: Value,
    pub rate_limit: Option<Rate>,
    #[serde(default, rename = "descriptors")]
    pub children: Vec<Descriptor>,
    #[serde(default)]
    pub shadow_mode: bool,
    /// All values of a wildcard share one counter.
    #[serde(default)]
    pub share_threshold: bool,
    #[serde(default)]
    pub quota_mode: bool,
    #[serde(rename = "detailed_metric")]
    _detailed_metric: Option<IgnoredAny>,
    #[serde(rename = "value_to_metric")]
    _value_to_metric: Option<IgnoredAny>,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    /// Key and value, as ratelimit joins and compares them.
    #[serde(skip)]
    pub joined: String,
    /// Those above and this one, as the name of a limit.
    #[serde(skip)]
    pub name: String,
    /// File and line.
    #[serde(skip)]
    pub at: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    unit: Option<String>,
    #[serde(default)]
    requests_per_unit: u32,
    #[serde(default)]
    pub unlimited: bool,
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
    #[serde(default)]
    pub replaces: Vec<Value>,
}

impl Rate {
    pub fn units(&self) -> u64 {
        u64::from(self.requests_per_unit).min(MAX_UNITS)
    }

    /// The time, as rates have it.
    pub fn per(&self) -> Option<&'static str> {
        let unit = self.unit.as_ref()?.to_lowercase();
        let mut units = UNITS.split(',').filter_map(|pair| pair.split_once(' '));
        units.find_map(|(name, per)| (name == unit).then_some(per))
    }
}

/// The domains of all files.
///
/// # Errors
/// ratelimit would refuse one, or there is none.
pub fn domains(documents: &[Document]) -> Result<Vec<Domain>, String> {
    let mut domains: Vec<Domain> = Vec::new();
    for document in documents {
        if get(&document.node, "domain").is_none() {
            continue;
        }
        let mut domain: Domain = document.read(&document.node)?;
        if domains.iter().any(|other| other.name == domain.name) {
            let at = document.at(&document.node);
            return Err(format!(
                "{at}: another file has the domain `{}` too",
                domain.name
            ));
        }
        place(document, "", "", &mut domain.descriptors)?;
        domains.push(domain);
    }
    match domains.is_empty() {
        true => Err("the files have no `domain` with `descriptors`".to_owned()),
        false => Ok(domains),
    }
}

/// Fills in what the file does not say of these descriptors, which are at this path and have this name above.
fn place(
    document: &Document,
    path: &str,
    above: &str,
    level: &mut [Descriptor],
) -> Result<(), String> {
    let mut names = Vec::new();
    for (index, one) in level.iter_mut().enumerate() {
        let path = format!("{path}descriptors[{index}]");
        one.at = document.field(&document.node, &path);
        one.joined = match &one.value {
            Value::Null => one.key.clone(),
            Value::String(value) if value.is_empty() => one.key.clone(),
            Value::String(value) => format!("{}_{value}", one.key),
            other => format!("{}_{other}", one.key),
        };
        let name = one
            .joined
            .replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
        let name = format!("{above}{}", name.replace("_-", "_").trim_matches('-'));
        one.name = name.chars().take(MAX_NAME).collect();
        if one.name.is_empty() {
            one.name.push('-');
        }
        let wrong = match &one.rate_limit {
            _ if one.key.is_empty() => "`key` is empty",
            _ if names.contains(&one.joined) => "this descriptor occurs twice",
            _ if one.share_threshold && !one.joined.contains('*') => "`share_threshold` needs `*`",
            Some(rate) if rate.unlimited == rate.per().is_some() => {
                "`unit` is missing or unknown, or beside `unlimited`"
            }
            _ => {
                names.push(one.joined.clone());
                place(
                    document,
                    &format!("{path}."),
                    &format!("{name}."),
                    &mut one.children,
                )?;
                continue;
            }
        };
        return Err(format!("{}: {wrong}", one.at));
    }
    Ok(())
}
