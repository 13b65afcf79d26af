//! Compiles `cost: {reserve: ..., settle: ...}`.

use std::rc::Rc;

use serde_json::Value;
use sluicegate_protocol::MAX_COST;

use super::error::{ConfigError, invalid};
use super::fields::{Fields, entries};
use super::key_components::{self, header_name};
use crate::amount::{Amount, Source, StatusTable, Weight};
use crate::cost::Cost;
use crate::settle::{Otherwise, SettleRule};

/// Most sources of a reserve or of a usage: each is read for every request.
const MAX_SOURCES: usize = 16;
/// Most entries of a table.
const MAX_ENTRIES: usize = 256;
/// Largest weight.
const MAX_WEIGHT: f64 = 1e6;
/// What one request reserves of a quota at most, in percent, unless it is given.
const MOST_PERCENT: u64 = 25;
/// For how long a hold lives without a sign of its stream, unless it is given.
const WITHIN: &str = "10m";

/// Whose numbers are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Request,
    Response,
}

/// Counts the sources of one amount, and numbers those in metadata.
#[derive(Default)]
struct Counted {
    sources: usize,
    metadata: usize,
}

/// The cost that is reserved, and how it is settled.
pub(super) fn compile(mut cost: Fields) -> Result<(Cost, Rc<SettleRule>), ConfigError> {
    let reserve = match cost.take("reserve") {
        None => Cost::Constant(1),
        Some(file) => match file.as_u64() {
            Some(units) if units <= MAX_COST => Cost::Constant(units),
            Some(_) => {
                return invalid(&cost.at("reserve"), format_args!("is more than {MAX_COST}"));
            }
            None => {
                let mut counted = Counted::default();
                let mut amount = amount(&cost.at("reserve"), file, Side::Request, &mut counted)?;
                // A request that tells nothing costs 1, as without a reserve.
                amount.default = amount.default.or(Some(1.0));
                Cost::Amount(amount)
            }
        },
    };
    let most = percent(&mut cost)?;
    let settle = cost.inner("settle")?;
    let mut file = cost.needs("settle", settle)?;
    cost.end()?;
    let mut counted = Counted::default();
    let from = file.take("from");
    let from = amount(
        &file.at("from"),
        file.needs("from", from)?,
        Side::Response,
        &mut counted,
    )?;
    let max = file.number("max")?.unwrap_or(MAX_COST);
    if !(1..=MAX_COST).contains(&max) {
        return invalid(
            &file.at("max"),
            format_args!("{max} is not between 1 and {MAX_COST}"),
        );
    }
    let mut headers = Vec::new();
    from.visit(&mut |source| {
        if let Source::Header(name) = source {
            headers.push(name.clone());
        }
    });
    let rule = SettleRule {
        from,
        max,
        unknown: otherwise(&mut file, "unknown")?,
        failed: otherwise(&mut file, "failed")?,
        cut_before_first_byte: otherwise(&mut file, "cut_before_first_byte")?,
        cut: otherwise(&mut file, "cut")?,
        within_ms: within_ms(&mut file)?,
        most,
        headers,
        metadata: counted.metadata,
    };
    file.end()?;
    Ok((reserve, Rc::new(rule)))
}

fn percent(cost: &mut Fields) -> Result<u64, ConfigError> {
    let Some(text) = cost.text("most")? else {
        return Ok(MOST_PERCENT);
    };
    let number = text
        .strip_suffix('%')
        .and_then(|digits| digits.parse().ok());
    match number.filter(|percent| (1..=100).contains(percent)) {
        Some(percent) => Ok(percent),
        None => invalid(
            &cost.at("most"),
            format_args!("`{text}` is no part of the quota: give `1%` to `100%`"),
        ),
    }
}

fn within_ms(file: &mut Fields) -> Result<u64, ConfigError> {
    let text = file.text("within")?;
    let text = text.as_deref().unwrap_or(WITHIN);
    let given = humantime::parse_duration(text)
        .ok()
        .map(|given| given.as_millis());
    let given = given.and_then(|ms| u64::try_from(ms).ok());
    match given.filter(|ms| (10_000..=86_400_000).contains(ms)) {
        Some(ms) => Ok(ms),
        None => invalid(
            &file.at("within"),
            format_args!("`{text}` is not a duration between `10s` and `1d`"),
        ),
    }
}

/// `keep`, `return`, or a number of units.
fn otherwise(file: &mut Fields, name: &str) -> Result<Otherwise, ConfigError> {
    let at = file.at(name);
    match file.take(name) {
        None => Ok(Otherwise::Keep),
        Some(Value::String(text)) if text == "keep" => Ok(Otherwise::Keep),
        Some(Value::String(text)) if text == "return" => Ok(Otherwise::Units(0)),
        Some(value) => match value.as_u64().filter(|units| *units <= MAX_COST) {
            Some(units) => Ok(Otherwise::Units(units)),
            None => invalid(
                &at,
                format_args!(
                    "is neither `keep`, nor `return`, nor a number of units up to {MAX_COST}"
                ),
            ),
        },
    }
}

fn amount(at: &str, file: Value, side: Side, counted: &mut Counted) -> Result<Amount, ConfigError> {
    if let Some(number) = file.as_f64() {
        return Ok(Amount {
            source: Source::Constant(not_negative(at, number)?),
            weight: Weight::Constant(1.0),
            max: f64::INFINITY,
            default: None,
        });
    }
    let mut file = Fields::of(at.to_owned(), file)?;
    let source = source(&mut file, side, counted)?;
    counted.sources += 1;
    if counted.sources > MAX_SOURCES {
        return invalid(
            at,
            format_args!("is one source too many: at most {MAX_SOURCES} are possible"),
        );
    }
    let max = decimal(&mut file, "max")?.unwrap_or(f64::INFINITY);
    let default = decimal(&mut file, "default")?;
    let weight = match file.take("weight") {
        None => Weight::Constant(1.0),
        Some(weight) => self::weight(&file.at("weight"), weight)?,
    };
    file.end()?;
    Ok(Amount {
        source,
        weight,
        max,
        default,
    })
}

fn source(file: &mut Fields, side: Side, counted: &mut Counted) -> Result<Source, ConfigError> {
    let mut found = Vec::new();
    if let Some(name) = file.text("header")? {
        if file.flag("trusted")? != Some(true) {
            let why = match side {
                Side::Request => {
                    "is not `true`: clients that write this header could choose their own cost; set `trusted: true` if something in front of this filter sets the header"
                }
                Side::Response => {
                    "is not `true`: whoever runs the upstream chooses what its requests cost; set `trusted: true` if that is right"
                }
            };
            return invalid(&file.at("trusted"), why);
        }
        found.push(Source::Header(header_name(&file.at("header"), &name)?));
    }
    if let Some(place) = file.inner("metadata")? {
        let place = key_components::metadata(place)?;
        found.push(Source::Metadata(place, counted.metadata));
        counted.metadata += 1;
    }
    for (name, source, only) in [
        ("bytes", Source::Bytes, None),
        ("milliseconds", Source::Milliseconds, Some(Side::Response)),
    ] {
        match file.flag(name)? {
            None => {}
            Some(true) if only.is_none_or(|only| only == side) => found.push(source),
            Some(true) => return invalid(&file.at(name), "is known in `settle` only"),
            Some(false) => {
                let why = "is `false`: set it to `true`, or leave it out";
                return invalid(&file.at(name), why);
            }
        }
    }
    for (name, table) in [
        ("status", Source::Status as fn(StatusTable) -> Source),
        ("grpc_status", Source::GrpcStatus),
    ] {
        if let Some(entries) = file.inner(name)? {
            if side == Side::Request {
                return invalid(&file.at(name), "is known in `settle` only");
            }
            found.push(table(statuses(entries, name == "status")?));
        }
    }
    for (name, of_list) in [
        ("largest", Source::Largest as fn(Vec<Amount>) -> Source),
        ("sum", Source::Sum),
    ] {
        if let Some(list) = file.take(name) {
            let mut amounts = Vec::new();
            for (at, entry) in entries(&file.at(name), list)? {
                amounts.push(amount(&at, entry, side, counted)?);
            }
            if amounts.is_empty() {
                return invalid(&file.at(name), "is empty");
            }
            found.push(of_list(amounts));
        }
    }
    let sources = found.len();
    match found.pop().filter(|_| sources == 1) {
        Some(source) => Ok(source),
        None => invalid(
            &file.at,
            format_args!(
                "has {sources} sources: give a number, or exactly one of `header`, `metadata`, `bytes`, `milliseconds`, `status`, `grpc_status`, `largest` and `sum`"
            ),
        ),
    }
}

fn statuses(table: Fields, of_http: bool) -> Result<StatusTable, ConfigError> {
    let at = table.at.clone();
    let is_status = |name: &str| match name.as_bytes() {
        [b'1'..=b'5', b'x', b'x'] => of_http,
        [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] if of_http => true,
        [b'0'..=b'9'] | [b'1', b'0'..=b'6'] => !of_http,
        _ => name == "default",
    };
    let table = numbers(table)?;
    match table.iter().find(|(name, _)| !is_status(name)) {
        None => Ok(StatusTable(table)),
        Some((name, _)) => {
            let known = if of_http {
                "`100` to `599`, `1xx` to `5xx`"
            } else {
                "`0` to `16`"
            };
            invalid(
                &format!("{at}.{name}"),
                format_args!("is no status: give {known}, or `default`"),
            )
        }
    }
}

/// The entries of a table, whose values are not negative.
fn numbers(table: Fields) -> Result<Vec<(String, f64)>, ConfigError> {
    let at = table.at.clone();
    let entries = table.into_map();
    if entries.is_empty() || entries.len() > MAX_ENTRIES {
        let why = format_args!("has {} entries: give 1 to {MAX_ENTRIES}", entries.len());
        return invalid(&at, why);
    }
    let mut numbers = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        let at = format!("{at}.{name}");
        let Some(number) = value.as_f64() else {
            return invalid(&at, "is not a number");
        };
        numbers.push((name, not_negative(&at, number)?));
    }
    Ok(numbers)
}

fn weight(at: &str, file: Value) -> Result<Weight, ConfigError> {
    if let Some(weight) = file.as_f64() {
        return if weight.abs() <= MAX_WEIGHT {
            Ok(Weight::Constant(weight))
        } else {
            invalid(at, format_args!("{weight} is more than {MAX_WEIGHT}"))
        };
    }
    let mut file = Fields::of(at.to_owned(), file)?;
    let (by, table) = (file.inner("by")?, file.inner("table")?);
    let by = key_components::trusted_source(file.needs("by", by)?)?;
    let mut table = numbers(file.needs("table", table)?)?;
    file.end()?;
    let default = table.iter().position(|(name, _)| name == "default");
    let Some(default) = default else {
        let why = "has no `default`: add the weight of names that it does not list";
        return invalid(&format!("{at}.table"), why);
    };
    let (_, default) = table.swap_remove(default);
    Ok(Weight::Table { by, table, default })
}

fn decimal(file: &mut Fields, name: &str) -> Result<Option<f64>, ConfigError> {
    let at = file.at(name);
    match file.take(name).map(|value| value.as_f64()) {
        None => Ok(None),
        Some(Some(number)) => not_negative(&at, number).map(Some),
        Some(None) => invalid(&at, "is not a number"),
    }
}

fn not_negative(at: &str, number: f64) -> Result<f64, ConfigError> {
    if number >= 0.0 {
        Ok(number)
    } else {
        invalid(at, format_args!("{number} is less than 0"))
    }
}
