//! How many units, in how long: `100/1m`, or a list of these; how many a request costs: `5`, a trusted header, or a table such
//! as `{ GET /search: 100, default: 1 }`.

use std::slice;

use serde_json::{Value, json};

use super::{Read, SCHEMA, matching, mistake, takes, wrong};
use crate::mask::shown;
use crate::policy::named_window::NamedWindow;
use crate::yaml::{Data, Node, fields, get, value};

/// The windows of a rate; the algorithm that they need if the limit names none, and what that means. Without a meaning, they need it
/// in any case.
pub fn rate(node: &Node) -> Read<(Value, &'static str, Option<&'static str>)> {
    let rates = match &node.value {
        Data::List(rates) if rates.is_empty() => return Err(wrong(node, "rate")),
        Data::List(rates) => rates,
        _ => slice::from_ref(node),
    };
    let windows = rates.iter().map(window).collect::<Read<Vec<_>>>()?;
    // Nothing is counted, so that all algorithms are alike.
    let is_nothing = |one: &Value| {
        let is_plain = one.as_object().is_some_and(|fields| fields.len() == 2);
        is_plain && one.get("quota") == Some(&json!(0))
    };
    if matches!(windows.as_slice(), [one] if is_nothing(one)) {
        return Ok((windows.into(), "fixed_window", None));
    }
    let of_calendar = windows.iter().filter(|window| is_calendar(window)).count();
    let (algorithm, means) = match of_calendar {
        0 => (
            "sliding_log",
            "exact, and takes 13 bytes for each request in the window",
        ),
        some if some == windows.len() => (
            "fixed_window",
            "as calendar windows need, in `time_zone: UTC`",
        ),
        _ => {
            let why = "`rate` has calendar windows (`day`, `week`, `month`) beside others: use `24h`, `7d` or `30d`, or two limits";
            return Err(mistake(node, why));
        }
    };
    Ok((windows.into(), algorithm, Some(means)))
}

fn is_calendar(window: &Value) -> bool {
    let per = window.get("per").and_then(Value::as_str);
    matches!(per.map(NamedWindow::read), Some(Ok(NamedWindow::Unit(_))))
}

fn window(node: &Node) -> Read<Value> {
    match &node.value {
        Data::Fields(fields) if !fields.is_empty() => Ok(value(node)),
        Data::Scalar(Value::String(text)) => quota_and_per(node, text),
        Data::Scalar(Value::Number(units)) if units.as_u64() == Some(0) => {
            Ok(json!({ "quota": 0, "per": "1h" }))
        }
        Data::Scalar(Value::Number(units)) => Err(mistake(
            node,
            format!(
                "`rate` is {units}, without the time: write `{units}/1s`, `{units}/1m` or `{units}/day`"
            ),
        )),
        _ => Err(wrong(node, "rate")),
    }
}

/// What people mean by words that begin so.
const MEANT: &str = "milli 1ms,ms 1ms,mon month,y 365d,ann 365d,s 1s,m 1m,h 1h,d 1d,w 1w";

fn quota_and_per(node: &Node, text: &str) -> Read<Value> {
    let refused = |why: String| mistake(node, format!("`rate` is {}: {why}", shown(text)));
    let parts = text.split_once('/');
    let (quota, per) = parts.ok_or_else(|| refused(format!("give {}", takes(&SCHEMA, "rate"))))?;
    let (quota, per) = (quota.trim(), per.trim());
    if text.contains('/') && text.contains(", ") {
        return Err(refused(format!("for several write a list: `[{text}]`")));
    }
    let units: u64 = quota.parse().map_err(|_| {
        let quota = shown(quota);
        refused(format!(
            "{quota} is not a whole number of units: write `100/1m`, with digits alone"
        ))
    })?;
    // `5/s` is `5/1s`.
    if per.starts_with(|c: char| c.is_ascii_digit()) || NamedWindow::read(per).is_ok() {
        NamedWindow::read(per).map_err(|why| refused(why.replace("`per`: ", "")))?;
        return Ok(json!({ "quota": units, "per": per }));
    }
    let one = format!("1{per}");
    if NamedWindow::read(&one).is_err() {
        let meant = MEANT.split(',').filter_map(|pair| pair.split_once(' '));
        let meant = meant.filter(|(begins, _)| per.starts_with(begins));
        let mut meant = meant.map(|(_, per)| format!("write `{units}/{per}`, with"));
        let why = format!(
            "{} is no unit of time: {} one of ms, s, m, h, d, w, or day, week, month",
            shown(per),
            meant.next().unwrap_or_else(|| "use".to_owned())
        );
        return Err(refused(why));
    }
    let per = one;
    Ok(json!({ "quota": units, "per": per }))
}

/// A cost in the long form.
pub fn cost(node: &Node) -> Read<Value> {
    let is_long = ["table", "header", "reserve", "settle"]
        .iter()
        .any(|field| get(node, field).is_some());
    match &node.value {
        Data::Fields(_) if is_long => Ok(value(node)),
        Data::Fields(list) if !list.is_empty() => table(node),
        Data::Scalar(number) => Ok(number.clone()),
        _ => Err(wrong(node, "cost")),
    }
}

/// The entries of a table of costs, by what they match.
pub fn entries_of(cost: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let entries = fields(cost)
        .iter()
        .map(|(name, given)| (name.value.as_str(), given));
    entries.filter(|(words, _)| *words != "default")
}

fn table(node: &Node) -> Read<Value> {
    let default = get(node, "default").map(|given| ("default", value(given)));
    let costs = entries_of(node).map(|(words, given)| entry(words, given));
    let costs = costs.collect::<Read<Vec<_>>>()?;
    if costs.is_empty() {
        let why = "`cost` has no entry but `default`: write the number alone";
        return Err(mistake(node, why));
    }
    let costs = [("table", costs.into())].into_iter();
    Ok(costs.chain(default).collect())
}

/// What requests cost that match the words.
fn entry(words: &str, cost: &Node) -> Read<Value> {
    let matched = matching::words(cost, words)?.into_iter();
    let fields = matched.map(|(field, given)| match (field, given.as_str()) {
        ("path_prefix", Some(prefix)) => ("template", format!("{prefix}**").into()),
        (_, Some(_)) => ("template", given),
        _ => (field, given),
    });
    Ok(fields.chain([("cost", value(cost))]).collect())
}
