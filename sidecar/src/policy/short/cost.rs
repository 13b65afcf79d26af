//! What a request costs: `5`, a trusted header, or a table such as `{ GET /search: 100, default: 1 }`.

use super::{Read, fields_at, list_at, matching, mistake, value_at, wrong};
use crate::yaml::{Data, Node, fields, get};

pub fn read(node: &Node) -> Read<Node> {
    let is_long = get(node, "table").is_some() || get(node, "header").is_some();
    match &node.value {
        Data::Scalar(_) => Ok(node.clone()),
        Data::Fields(_) if is_long => Ok(node.clone()),
        Data::Fields(list) if !list.is_empty() => table(node),
        _ => wrong(node, "cost"),
    }
}

fn table(node: &Node) -> Read<Node> {
    let (mut table, mut default) = (Vec::new(), None);
    for (name, cost) in fields(node) {
        if name.value == "default" {
            default = Some(("default", cost.clone()));
            continue;
        }
        let matched = matching::words(&value_at(cost, name.value.as_str()), &name.value)?;
        let mut entry = Vec::new();
        for (field, value) in fields(&matched) {
            match field.value.as_str() {
                "methods" => entry.push(("methods", value.clone())),
                "path_prefix" => {
                    let prefix = name.value.split_whitespace().last().unwrap_or_default();
                    entry.push(("template", value_at(value, format!("{prefix}**"))));
                }
                _ => entry.push(("template", value.clone())),
            }
        }
        entry.push(("cost", cost.clone()));
        table.push(fields_at(cost, entry));
    }
    if table.is_empty() {
        return mistake(
            node,
            "`cost` has no entry but `default`: write the number alone",
        );
    }
    Ok(fields_at(
        node,
        [("table", list_at(node, table))].into_iter().chain(default),
    ))
}
