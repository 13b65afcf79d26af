//! How many units, in how long: `100/1m`, or a list of these.

use serde_json::Value;

use super::{Read, fields_at, list_at, mistake, takes, value_at, wrong};
use crate::mask::shown;
use crate::policy::named_window::NamedWindow;
use crate::yaml::{Data, Node, fields, get, text};

/// The windows of a rate, and the algorithm that they need if the limit names none.
pub fn read(node: &Node) -> Read<(Node, &'static str)> {
    let rates = match &node.value {
        Data::List(rates) if !rates.is_empty() => rates.as_slice(),
        Data::List(_) => return wrong(node, "rate"),
        _ => std::slice::from_ref(node),
    };
    let windows = rates.iter().map(window).collect::<Read<Vec<_>>>()?;
    let of_calendar = windows.iter().filter(|window| is_calendar(window)).count();
    let algorithm = match of_calendar {
        0 => "sliding_log",
        some if some == windows.len() => "fixed_window",
        _ => {
            return mistake(
                node,
                "`rate` has calendar windows (`day`, `week`, `month`) beside others: use `24h`, `7d` or `30d`, or two limits",
            );
        }
    };
    Ok((list_at(node, windows), algorithm))
}

fn is_calendar(window: &Node) -> bool {
    let per = get(window, "per").and_then(text);
    matches!(per.map(NamedWindow::read), Some(Ok(NamedWindow::Unit(_))))
}

fn window(node: &Node) -> Read<Node> {
    let text = match &node.value {
        Data::Fields(_) if !fields(node).is_empty() => return Ok(node.clone()),
        Data::Scalar(Value::String(text)) => text,
        Data::Scalar(Value::Number(units)) => {
            return mistake(
                node,
                format!(
                    "`rate` is {units}, without the time: write `{units}/1s`, `{units}/1m` or `{units}/day`"
                ),
            );
        }
        _ => return wrong(node, "rate"),
    };
    let given = shown(text);
    let Some((quota, per)) = text.split_once('/') else {
        return mistake(node, format!("`rate` is {given}: give {}", takes("rate")));
    };
    let (quota, per) = (quota.trim(), per.trim());
    let Ok(units) = quota.parse::<u64>() else {
        let quota = shown(quota);
        return mistake(
            node,
            format!("`rate` is {given}: {quota} is not a whole number of units; write `100/1m`"),
        );
    };
    // `5/s` is `5/1s`.
    let per = match per.starts_with(|c: char| c.is_ascii_digit()) || NamedWindow::read(per).is_ok()
    {
        true => per.to_owned(),
        false => format!("1{per}"),
    };
    if let Err(why) = NamedWindow::read(&per) {
        let why = why.trim_start_matches("`per`: ");
        return mistake(node, format!("`rate` is {given}: {why}"));
    }
    Ok(fields_at(
        node,
        [
            ("quota", value_at(node, units)),
            ("per", value_at(node, per)),
        ],
    ))
}
