//! Validates a rule's `checks`.

use sluicegate_protocol::MAX_COST;

use super::error::{ConfigError, invalid};
use super::key_components::{self, header_name};
use super::matching::{methods, template};
use super::schema;
use super::values::{each, name, not_empty};
use crate::cost::{Cost, Entry};
use crate::key_component::{ComponentSource, KeyComponent};
use crate::rule::{CheckRule, LimitName};

/// All checks of a rule are made in one decision, which the protocol bounds too.
const MAX_CHECKS: usize = 8;
/// Components of one key.
const MAX_COMPONENTS: usize = 8;
/// Bytes of the name of a consumer's key, which the check's key contains twice: even with an IPv6 address and a shadow
/// rule's name, it must not be so long that it is replaced by its hash, in which the sidecar recognizes nobody.
const MAX_CONSUMER_NAME: usize = 48;

/// The checks, and the names of all limits that they can select, each once.
pub(super) fn validate(
    at: &str,
    file: &[schema::Check],
    variables: &[String],
) -> Result<(Vec<CheckRule>, Vec<String>), ConfigError> {
    if file.is_empty() || file.len() > MAX_CHECKS {
        return invalid(
            at,
            format_args!("has {} entries: give 1 to {MAX_CHECKS}", file.len()),
        );
    }
    let mut limits = Vec::new();
    let checks = each(at, file, |at, check| {
        validate_check(at, check, variables, &mut limits)
    })?;
    Ok((checks, limits))
}

fn validate_check(
    at: &str,
    file: &schema::Check,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<CheckRule, ConfigError> {
    if file.key.is_empty() || file.key.len() > MAX_COMPONENTS {
        return invalid(
            &format!("{at}.key"),
            format_args!(
                "has {} components: give 1 to {MAX_COMPONENTS}; one allowance for everyone is `[{{constant: everyone}}]`",
                file.key.len()
            ),
        );
    }
    let key = each(&format!("{at}.key"), &file.key, |at, component| {
        key_components::validate(at, component, variables)
    })?;
    match &file.when_missing {
        Some(schema::WhenMissing::Use(text)) => {
            not_empty(&format!("{at}.when_missing.use"), text)?;
        }
        Some(schema::WhenMissing::Address(file)) => {
            key_components::address(&format!("{at}.when_missing.address"), file)?;
        }
        _ => {}
    }
    if file.consumers {
        consumers(at, file, &key)?;
    }
    Ok(CheckRule {
        limit: limit(&format!("{at}.limit"), &file.limit, variables, limits)?,
        key,
        cost: cost(&format!("{at}.cost"), &file.cost)?,
        quota: (file.quota.as_ref())
            .map(|file| key_components::trusted_source(&format!("{at}.quota"), file))
            .transpose()?,
        when_missing: file.when_missing.clone().unwrap_or_default(),
        consumers: file.consumers,
    })
}

/// The sidecar replaces the key, so it must know its form.
fn consumers(at: &str, file: &schema::Check, key: &[KeyComponent]) -> Result<(), ConfigError> {
    use ComponentSource::{Cookie, Header, Query};
    let is_sent = |source: &_| matches!(source, Header(_) | Cookie(_) | Query(_));
    let is_fit = |one: &KeyComponent| {
        one.hashed && is_sent(&one.source) && one.name.len() <= MAX_CONSUMER_NAME
    };
    match (key, &file.limit, &file.when_missing) {
        ([one], schema::Limit::Name(_), Some(schema::WhenMissing::Address(_))) if is_fit(one) => {
            Ok(())
        }
        _ => invalid(
            &format!("{at}.consumers"),
            "needs a `limit` without tiers, a `key` of one `header`, `cookie` or `query`, not `plain` and with a name of at most 48 bytes, and `when_missing: {address: {}}`",
        ),
    }
}

fn limit(
    at: &str,
    file: &schema::Limit,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<LimitName, ConfigError> {
    let mut index = |at: &str, limit: &str| {
        let limit = name(at, limit)?;
        if let Some(index) = limits.iter().position(|earlier| earlier == limit) {
            return Ok(index);
        }
        limits.push(limit.to_owned());
        Ok(limits.len() - 1)
    };
    let tiers = match file {
        schema::Limit::Name(name) => return Ok(LimitName::Fixed(index(at, name)?)),
        schema::Limit::Tiers(tiers) => tiers,
    };
    let mut map = Vec::with_capacity(tiers.map.len());
    let mut default = None;
    for (tier, limit) in &tiers.map {
        let index = index(&format!("{at}.map.{tier}"), limit)?;
        if tier == "default" {
            default = Some(index);
        }
        map.push((tier.clone(), index));
    }
    let Some(default) = default else {
        return invalid(
            &format!("{at}.map"),
            "has no `default`: add the limit for requests that name no tier, or an unknown one",
        );
    };
    let by = key_components::validate(&format!("{at}.by"), &tiers.by, variables)?;
    if tiers.by.plain {
        return invalid(
            &format!("{at}.by.plain"),
            "the name of a tier is compared and never sent: remove it",
        );
    }
    Ok(LimitName::Tiers { by, map, default })
}

fn units(at: &str, units: u64) -> Result<u64, ConfigError> {
    if (1..=MAX_COST).contains(&units) {
        Ok(units)
    } else {
        invalid(at, format_args!("{units} is not between 1 and {MAX_COST}"))
    }
}

fn cost(at: &str, file: &schema::Cost) -> Result<Cost, ConfigError> {
    let varying = match file {
        schema::Cost::Constant(cost) => return Ok(Cost::Constant(units(at, *cost)?)),
        schema::Cost::Varying(varying) => varying,
    };
    let default = units(&format!("{at}.default"), varying.default)?;
    match (&varying.table, &varying.header) {
        (Some(table), None) if varying.max.is_none() && !varying.trusted => {
            if table.is_empty() {
                return invalid(&format!("{at}.table"), "is empty: use `cost: N` instead");
            }
            Ok(Cost::Table {
                entries: each(&format!("{at}.table"), table, entry)?,
                default,
            })
        }
        (None, Some(header)) => {
            let Some(most) = varying.max else {
                return invalid(
                    &format!("{at}.max"),
                    "is missing: set the largest cost that the header can set",
                );
            };
            if !varying.trusted {
                return invalid(
                    &format!("{at}.trusted"),
                    "is not `true`: clients that write this header could choose their own cost; set `trusted: true` if something in front of this filter sets the header",
                );
            }
            let most = units(&format!("{at}.max"), most)?;
            if default > most {
                return invalid(
                    &format!("{at}.default"),
                    format_args!("{default} is more than `max` ({most})"),
                );
            }
            Ok(Cost::Header {
                name: header_name(&format!("{at}.header"), header)?,
                most,
                default,
            })
        }
        _ => invalid(
            at,
            "is neither a number, nor `{table: [...]}`, nor `{header: NAME, max: N, trusted: true}`",
        ),
    }
}

fn entry(at: &str, file: &schema::CostEntry) -> Result<Entry, ConfigError> {
    Ok(Entry {
        template: (file.template.as_ref())
            .map(|text| template(&format!("{at}.template"), text))
            .transpose()?,
        methods: methods(&format!("{at}.methods"), &file.methods)?,
        cost: units(&format!("{at}.cost"), file.cost)?,
    })
}
