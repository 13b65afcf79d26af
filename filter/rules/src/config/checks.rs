//! Checks of what a rule's `checks` say.

use sluicegate_protocol::MAX_COST;

use super::fault::{ConfigError, fault};
use super::matching::{methods, template};
use super::parts::{self, header_name};
use super::{name, not_empty, written};
use crate::cost::{Cost, Entry};
use crate::rule::{CheckRule, LimitName, WhenMissing};

/// A rule's checks travel together; the wire has a bound on them too.
const MAX_CHECKS: usize = 8;
/// Parts of one key.
const MAX_PARTS: usize = 8;

/// The checks, and the limits that they may name, each once.
pub(super) fn check(
    at: &str,
    file: &[written::Check],
    variables: &[String],
) -> Result<(Vec<CheckRule>, Vec<String>), ConfigError> {
    if file.is_empty() || file.len() > MAX_CHECKS {
        return fault(
            at,
            format_args!("has {} entries: give 1 to {MAX_CHECKS}", file.len()),
        );
    }
    let mut limits = Vec::new();
    let mut checks = Vec::with_capacity(file.len());
    for (index, check) in file.iter().enumerate() {
        checks.push(check_one(
            &format!("{at}[{index}]"),
            check,
            variables,
            &mut limits,
        )?);
    }
    Ok((checks, limits))
}

fn check_one(
    at: &str,
    file: &written::Check,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<CheckRule, ConfigError> {
    if file.key.is_empty() || file.key.len() > MAX_PARTS {
        return fault(
            &format!("{at}.key"),
            format_args!(
                "has {} parts: give 1 to {MAX_PARTS}; one allowance for everyone is `[{{constant: everyone}}]`",
                file.key.len()
            ),
        );
    }
    let mut key = Vec::with_capacity(file.key.len());
    for (index, part) in file.key.iter().enumerate() {
        key.push(parts::check(
            &format!("{at}.key[{index}]"),
            part,
            variables,
        )?);
    }
    Ok(CheckRule {
        limit: limit(&format!("{at}.limit"), &file.limit, variables, limits)?,
        parts: key,
        cost: cost(&format!("{at}.cost"), &file.cost)?,
        when_missing: match &file.when_missing {
            None | Some(written::WhenMissing::Skip) => WhenMissing::Skip,
            Some(written::WhenMissing::Deny) => WhenMissing::Deny,
            Some(written::WhenMissing::Use(text)) => {
                WhenMissing::Use(not_empty(&format!("{at}.when_missing.use"), text)?.to_owned())
            }
        },
    })
}

fn limit(
    at: &str,
    file: &written::Limit,
    variables: &[String],
    limits: &mut Vec<String>,
) -> Result<LimitName, ConfigError> {
    let mut place = |at: &str, limit: &str| {
        let limit = name(at, limit)?;
        if let Some(place) = limits.iter().position(|earlier| earlier == limit) {
            return Ok(place);
        }
        limits.push(limit.to_owned());
        Ok(limits.len() - 1)
    };
    let tiers = match file {
        written::Limit::Name(name) => return Ok(LimitName::Fixed(place(at, name)?)),
        written::Limit::Tiers(tiers) => tiers,
    };
    let mut map = Vec::with_capacity(tiers.map.len());
    let mut default = None;
    for (tier, limit) in &tiers.map {
        let place = place(&format!("{at}.map.{tier}"), limit)?;
        if tier == "default" {
            default = Some(place);
        }
        map.push((tier.clone(), place));
    }
    let Some(default) = default else {
        return fault(
            &format!("{at}.map"),
            "has no `default`: say which limit is for a request that names no tier, or an unknown one",
        );
    };
    let by = parts::check(&format!("{at}.by"), &tiers.by, variables)?;
    if tiers.by.plain {
        return fault(
            &format!("{at}.by.plain"),
            "a tier's name is compared, never sent: remove it",
        );
    }
    Ok(LimitName::Tiers { by, map, default })
}

fn units(at: &str, units: u64) -> Result<u64, ConfigError> {
    if (1..=MAX_COST).contains(&units) {
        Ok(units)
    } else {
        fault(at, format_args!("{units} is not between 1 and {MAX_COST}"))
    }
}

fn cost(at: &str, file: &written::Cost) -> Result<Cost, ConfigError> {
    let varying = match file {
        written::Cost::Constant(cost) => return Ok(Cost::Constant(units(at, *cost)?)),
        written::Cost::Varying(varying) => varying,
    };
    let default = units(&format!("{at}.default"), varying.default)?;
    match (&varying.table, &varying.header) {
        (Some(table), None) if varying.max.is_none() && !varying.trusted => {
            if table.is_empty() {
                return fault(&format!("{at}.table"), "is empty: say `cost: N` instead");
            }
            let entries = table.iter().enumerate();
            let entries = entries.map(|(index, line)| entry(&format!("{at}.table[{index}]"), line));
            Ok(Cost::Table {
                entries: entries.collect::<Result<_, _>>()?,
                default,
            })
        }
        (None, Some(header)) => {
            let Some(most) = varying.max else {
                return fault(
                    &format!("{at}.max"),
                    "is missing: say the most that the header can make a request cost",
                );
            };
            if !varying.trusted {
                return fault(
                    &format!("{at}.trusted"),
                    "is not `true`: a header that clients write would let them choose what they pay; say `trusted: true` if something in front of this filter writes it",
                );
            }
            let most = units(&format!("{at}.max"), most)?;
            if default > most {
                return fault(
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
        _ => fault(
            at,
            "is neither a number, nor `{table: [...]}`, nor `{header: NAME, max: N, trusted: true}`",
        ),
    }
}

fn entry(at: &str, file: &written::CostEntry) -> Result<Entry, ConfigError> {
    Ok(Entry {
        template: match &file.template {
            Some(text) => Some(template(&format!("{at}.template"), text)?),
            None => None,
        },
        methods: methods(&format!("{at}.methods"), &file.methods)?,
        cost: units(&format!("{at}.cost"), file.cost)?,
    })
}
