//! Compiles a rule's `checks`.

use std::rc::Rc;

use serde_json::Value;
use sluicegate_protocol::MAX_COST;

use super::amounts;
use super::error::{ConfigError, invalid};
use super::fields::{Fields, word};
use super::key_components::{self, header_name};
use super::matching::{methods, template};
use super::terms::WhenMissing;
use super::values::{name, not_empty};
use crate::cost::{Cost, Entry};
use crate::key_component::{ComponentSource, KeyComponent};
use crate::rule::{CheckRule, LimitName};
use crate::settle::SettleRule;

/// All checks of a rule are made in one decision, which the protocol bounds too.
const MAX_CHECKS: usize = 8;
/// Components of one key.
const MAX_COMPONENTS: usize = 8;
/// Most limits that the checks of a rule can select: texts are made for each, and 900 take 4 ms.
pub(super) const MAX_LIMITS: usize = 256;
/// Bytes of the name of a consumer's key, which the check's key contains twice: even with an IPv6 address and a shadow
/// rule's name, it must not be so long that it is replaced by its hash, in which the sidecar recognizes nobody.
const MAX_CONSUMER_NAME: usize = 48;

/// The checks, and the names of all limits that they can select, each once.
pub(super) fn compile(
    rule: &mut Fields,
    variables: &[String],
) -> Result<(Vec<CheckRule>, Vec<String>), ConfigError> {
    let (files, at) = (rule.objects("checks")?, rule.at("checks"));
    if files.is_empty() || files.len() > MAX_CHECKS {
        let why = format_args!("has {} entries: give 1 to {MAX_CHECKS}", files.len());
        return invalid(&at, why);
    }
    let (mut limits, mut selected) = (Vec::new(), 0);
    let mut checks = Vec::with_capacity(files.len());
    for file in files {
        let check = check(file, variables, &mut limits)?;
        selected += match &check.limit {
            LimitName::Fixed(_) => 1,
            LimitName::Tiers { map, .. } => map.len(),
        };
        checks.push(check);
    }
    if selected > MAX_LIMITS {
        let why = format_args!("select {selected} limits: at most {MAX_LIMITS} are possible");
        return invalid(&at, why);
    }
    Ok((checks, limits))
}

fn check(
    mut file: Fields,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<CheckRule, ConfigError> {
    let components = file.objects("key")?;
    if components.is_empty() || components.len() > MAX_COMPONENTS {
        let why = format_args!(
            "has {} components: give 1 to {MAX_COMPONENTS}; one allowance for everyone is `[{{constant: everyone}}]`",
            components.len()
        );
        return invalid(&file.at("key"), why);
    }
    let mut key = Vec::with_capacity(components.len());
    for component in components {
        key.push(key_components::compile(component, variables)?);
    }
    let when_missing = when_missing(&mut file)?;
    let consumers = file.flag("consumers")?.unwrap_or_default();
    let limit = file.take("limit");
    let limit = self::limit(
        &file.at("limit"),
        file.needs("limit", limit)?,
        variables,
        limits,
    )?;
    if consumers {
        let is_fit = matches!(
            (&limit, &when_missing),
            (LimitName::Fixed(_), WhenMissing::Address(_))
        );
        can_be_consumers(&file, &key, is_fit)?;
    }
    let (cost, settle) = cost(&mut file)?;
    let check = CheckRule {
        limit,
        key,
        cost,
        settle,
        quota: file
            .inner("quota")?
            .map(key_components::trusted_source)
            .transpose()?,
        when_missing,
        consumers,
    };
    file.end()?;
    Ok(check)
}

/// The sidecar replaces the key, so it must know its form.
fn can_be_consumers(file: &Fields, key: &[KeyComponent], is_fit: bool) -> Result<(), ConfigError> {
    use ComponentSource::{Cookie, Header, Query};
    match key {
        [one]
            if is_fit
                && one.hashed
                && matches!(one.source, Header(_) | Cookie(_) | Query(_))
                && one.name.len() <= MAX_CONSUMER_NAME =>
        {
            Ok(())
        }
        _ => invalid(
            &file.at("consumers"),
            "needs a `limit` without tiers, a `key` of one `header`, `cookie` or `query`, not `plain` and with a name of at most 48 bytes, and `when_missing: {address: {}}`",
        ),
    }
}

/// A word, or an object with one field.
fn when_missing(check: &mut Fields) -> Result<WhenMissing, ConfigError> {
    let at = check.at("when_missing");
    let mut file = match check.take("when_missing") {
        None => return Ok(WhenMissing::Skip),
        Some(Value::String(text)) => {
            let words = [WhenMissing::Skip, WhenMissing::Deny];
            let index = word(&at, &text, &["skip", "deny"])?;
            return Ok(words.into_iter().nth(index).unwrap_or_default());
        }
        Some(value) => Fields::of(at, value)?,
    };
    let when = match (file.inner("address")?, file.text("use")?) {
        (Some(address), None) => WhenMissing::Address(key_components::address(address)?),
        (None, Some(text)) => WhenMissing::Use(not_empty(&file.at("use"), text)?),
        _ => return invalid(&file.at, "give exactly one of `address` and `use`"),
    };
    file.end()?;
    Ok(when)
}

fn limit(
    at: &str,
    file: Value,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<LimitName, ConfigError> {
    let mut index = |at: &str, limit: Value| {
        let Value::String(limit) = limit else {
            return invalid(at, "is not a text");
        };
        let limit = name(at, limit)?;
        if let Some(index) = limits.iter().position(|earlier| *earlier == limit) {
            return Ok(index);
        }
        limits.push(limit);
        Ok(limits.len() - 1)
    };
    if file.is_string() {
        return Ok(LimitName::Fixed(index(at, file)?));
    }
    let mut tiers = Fields::of(at.to_owned(), file)?;
    let named = tiers.inner("map")?;
    let named = tiers.needs("map", named)?.into_map();
    let mut map = Vec::with_capacity(named.len());
    let mut default = None;
    for (tier, limit) in named {
        let index = index(&format!("{at}.map.{tier}"), limit)?;
        if tier == "default" {
            default = Some(index);
        }
        map.push((tier, index));
    }
    let Some(default) = default else {
        return invalid(
            &format!("{at}.map"),
            "has no `default`: add the limit for requests that name no tier, or an unknown one",
        );
    };
    let by = tiers.inner("by")?;
    let by = key_components::compile(tiers.needs("by", by)?, variables)?;
    tiers.end()?;
    Ok(LimitName::Tiers { by, map, default })
}

fn units(at: &str, units: u64) -> Result<u64, ConfigError> {
    match units {
        0 => invalid(at, "0 is no cost: give 1 or more"),
        1..=MAX_COST => Ok(units),
        _ => invalid(at, format_args!("{units} is more than {MAX_COST}")),
    }
}

fn cost(check: &mut Fields) -> Result<(Cost, Option<Rc<SettleRule>>), ConfigError> {
    let at = check.at("cost");
    let cost = match check.take("cost") {
        None => Cost::Constant(1),
        Some(cost) => match cost.as_u64() {
            Some(cost) => Cost::Constant(units(&at, cost)?),
            None => {
                let cost = Fields::of(at, cost)?;
                if cost.has("reserve") || cost.has("settle") {
                    return amounts::compile(cost).map(|(cost, settle)| (cost, Some(settle)));
                }
                varying(cost)?
            }
        },
    };
    Ok((cost, None))
}

fn varying(mut varying: Fields) -> Result<Cost, ConfigError> {
    let default = varying.number("default")?.unwrap_or(1);
    let default = units(&varying.at("default"), default)?;
    let has_table = varying.has("table");
    let table = varying.objects("table")?;
    let (header, most) = (varying.text("header")?, varying.number("max")?);
    let trusted = varying.flag("trusted")?.unwrap_or_default();
    varying.end()?;
    match (has_table, header) {
        (true, None) if most.is_none() && !trusted => {
            if table.is_empty() {
                let why = "is empty: use `cost: N` instead";
                return invalid(&varying.at("table"), why);
            }
            let mut entries = Vec::with_capacity(table.len());
            for file in table {
                entries.push(entry(file)?);
            }
            Ok(Cost::Table { entries, default })
        }
        (false, Some(header)) => {
            let Some(most) = most else {
                return invalid(
                    &varying.at("max"),
                    "is missing: set the largest cost that the header can set",
                );
            };
            if !trusted {
                return invalid(
                    &varying.at("trusted"),
                    "is not `true`: clients that write this header could choose their own cost; set `trusted: true` if something in front of this filter sets the header",
                );
            }
            let most = units(&varying.at("max"), most)?;
            if default > most {
                let why = format_args!("{default} is more than `max` ({most})");
                return invalid(&varying.at("default"), why);
            }
            Ok(Cost::Header {
                name: header_name(&varying.at("header"), &header)?,
                most,
                default,
            })
        }
        _ => invalid(
            &varying.at,
            "is neither a number, nor `{table: [...]}`, nor `{header: NAME, max: N, trusted: true}`, nor `{reserve: ..., settle: {...}}`",
        ),
    }
}

fn entry(mut file: Fields) -> Result<Entry, ConfigError> {
    let at = file.at("template");
    let template = file.text("template")?;
    let cost = file.number("cost")?;
    let entry = Entry {
        template: template
            .map(|text| self::template(&at, &text))
            .transpose()?,
        methods: methods(&mut file)?,
        cost: units(&file.at("cost"), file.needs("cost", cost)?)?,
    };
    file.end()?;
    Ok(entry)
}
