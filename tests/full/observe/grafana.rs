//! Generates the JSON that Grafana 10 and 11 read from the description.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::description::{Annotation, Dashboard, Description, Kind, Panel, Query, Row, Variable};

/// Columns of Grafana's grid.
pub const COLUMNS: u32 = 24;
/// The variable at the top of each page that selects the Prometheus.
const SOURCE: &str = "${datasource}";

static FIXED: LazyLock<Value> =
    LazyLock::new(|| serde_saphyr::from_str(include_str!("grafana.yaml")).expect("YAML"));

/// A part of grafana.yaml, with these fields in addition.
fn with(part: &str, more: Value) -> Value {
    let mut whole = FIXED[part].clone();
    let fields = whole.as_object_mut().expect("fields");
    fields.extend(more.as_object().expect("fields").clone());
    whole
}

/// Each dashboard's path in the repository, and its content.
pub fn files(description: &Description) -> Vec<(String, Value)> {
    let path = |name: &str| format!("deploy/grafana/dashboards/{name}.json");
    let all = description.dashboards.iter();
    all.map(|one| (path(&one.name), page(description, one)))
        .collect()
}

fn uid(dashboard: &Dashboard) -> String {
    format!("sluicegate-{}", dashboard.name)
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": SOURCE })
}

fn page(description: &Description, dashboard: &Dashboard) -> Value {
    let others = description.dashboards.iter();
    let others = others.filter(|other| other.name != dashboard.name);
    let links = others.map(|other| {
        let url = format!("/d/{}", uid(other));
        with(
            "link",
            json!({ "title": other.title, "tooltip": other.says, "url": url }),
        )
    });
    let annotations = description.annotations.iter();
    let annotations = annotations.map(|one| annotation(description, one));
    let mut variables = vec![FIXED["datasource"].clone()];
    variables.extend(description.variables.iter().map(variable));
    let more = json!({
        "uid": uid(dashboard),
        "title": dashboard.title,
        "description": dashboard.says,
        "annotations": { "list": annotations.collect::<Vec<_>>() },
        "links": links.collect::<Vec<_>>(),
        "templating": { "list": variables },
        "panels": panels(description, dashboard),
    });
    with("page", more)
}

fn annotation(description: &Description, annotation: &Annotation) -> Value {
    let expr = description.selected(&annotation.query);
    let more = json!({ "name": annotation.name, "datasource": source(), "iconColor": annotation.color, "expr": expr,
        "titleFormat": annotation.text });
    with("annotation", more)
}

fn variable(variable: &Variable) -> Value {
    let query = json!({ "query": variable.values, "refId": variable.name });
    let more = json!({ "name": variable.name, "label": variable.label, "datasource": source(),
        "definition": variable.values, "query": query });
    with("variable", more)
}

/// All rows below one another, every panel with its position.
fn panels(description: &Description, dashboard: &Dashboard) -> Vec<Value> {
    let (mut made, mut top) = (Vec::new(), 0);
    for row in &dashboard.rows {
        if let Some(title) = &row.title {
            let place = json!({ "x": 0, "y": top, "w": COLUMNS, "h": 1 });
            let more = json!({ "id": made.len() + 1, "title": title, "gridPos": place });
            made.push(with("row", more));
            top += 1;
        }
        for (position, panel) in positions(row).into_iter().zip(&row.panels) {
            let mut one = picture(description, panel);
            one["id"] = json!(made.len() + 1);
            one["gridPos"] = json!({ "x": position.0, "y": top, "w": position.1, "h": row.height });
            made.push(one);
        }
        top += row.height;
    }
    made
}

/// Left edge and width of each panel of a row; the last takes the remaining columns.
fn positions(row: &Row) -> Vec<(u32, u32)> {
    let count = u32::try_from(row.panels.len()).unwrap();
    let width = COLUMNS / count;
    let mut positions: Vec<_> = (0..count).map(|n| (n * width, width)).collect();
    if let Some((left, width)) = positions.last_mut() {
        *width = COLUMNS - *left;
    }
    positions
}

fn picture(description: &Description, panel: &Panel) -> Value {
    let targets = panel.queries.iter().zip('A'..='Z');
    let targets: Vec<_> = targets
        .map(|(query, letter)| target(description, panel, query, letter))
        .collect();
    let mut made = json!({
        "title": panel.title, "description": panel.says, "datasource": source(), "targets": targets,
        "type": kind(panel.kind), "options": options(panel),
        "fieldConfig": { "defaults": defaults(panel), "overrides": [] },
    });
    if panel.kind == Kind::Table {
        let (transformations, overrides) = columns(panel);
        made["transformations"] = transformations;
        made["fieldConfig"]["overrides"] = overrides;
    }
    made
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Stat => "stat",
        Kind::Timeseries => "timeseries",
        Kind::Bars => "bargauge",
        Kind::Heatmap => "heatmap",
        Kind::Table => "table",
    }
}

fn target(description: &Description, panel: &Panel, query: &Query, letter: char) -> Value {
    let format = match panel.kind {
        Kind::Table => "table",
        Kind::Heatmap => "heatmap",
        _ => "time_series",
    };
    let legend = match panel.kind {
        Kind::Heatmap => "{{le}}",
        _ => query.legend.as_deref().unwrap_or("__auto"),
    };
    json!({
        "refId": letter, "datasource": source(), "expr": description.selected(&query.expr), "format": format,
        "legendFormat": legend, "instant": panel.now, "range": !panel.now,
    })
}

fn defaults(panel: &Panel) -> Value {
    let mut defaults = json!({ "color": color(panel), "thresholds": thresholds(panel), "mappings": mappings(panel), "unit": panel.unit });
    if let Some(max) = panel.max {
        defaults["max"] = json!(max);
    }
    // A logarithmic axis has no zero.
    if !panel.log && matches!(panel.kind, Kind::Timeseries | Kind::Bars) {
        defaults["min"] = json!(0);
    }
    if panel.kind == Kind::Timeseries {
        let (scale, opacity) = match panel.log {
            true => (json!({ "type": "log", "log": 10 }), 0),
            false => (json!({ "type": "linear" }), 10),
        };
        let more = json!({ "fillOpacity": opacity, "scaleDistribution": scale });
        defaults["custom"] = with("custom", more);
    }
    defaults
}

fn color(panel: &Panel) -> Value {
    match panel.kind {
        Kind::Timeseries => json!({ "mode": "palette-classic" }),
        _ => json!({ "mode": "thresholds" }),
    }
}

/// Thresholds in ascending order; values below the first are green.
fn thresholds(panel: &Panel) -> Value {
    let mut steps: Vec<_> = panel.thresholds.iter().collect();
    steps.sort_by(|one, other| one.1.total_cmp(other.1));
    let base = if steps.is_empty() { "blue" } else { "green" };
    let mut all = vec![json!({ "color": base, "value": null })];
    let step = |(color, value)| json!({ "color": color, "value": value });
    all.extend(steps.into_iter().map(step));
    json!({ "mode": "absolute", "steps": all })
}

fn mappings(panel: &Panel) -> Value {
    if panel.values.is_empty() {
        return json!([]);
    }
    let words = panel.values.iter().zip(0..);
    let words = words.map(|((value, word), index)| {
        let word = json!({ "text": word.text, "color": word.color, "index": index });
        (value.clone(), word)
    });
    json!([{ "type": "value", "options": words.collect::<Map<_, _>>() }])
}

fn options(panel: &Panel) -> Value {
    let mut options = FIXED[kind(panel.kind)].clone();
    match panel.kind {
        Kind::Stat => {
            let area = panel.values.is_empty() && !panel.now;
            options["graphMode"] = json!(if area { "area" } else { "none" });
        }
        Kind::Heatmap => options["yAxis"]["unit"] = json!(panel.unit),
        _ => {}
    }
    options
}

/// A table's columns: all queries side by side, with the headings and units of the description.
fn columns(panel: &Panel) -> (Value, Value) {
    let named = || panel.queries.iter().zip('A'..='Z');
    let name = |letter: char| match panel.queries.len() {
        1 => "Value".to_owned(),
        _ => format!("Value #{letter}"),
    };
    let heading = |query: &Query| query.column.clone().expect("a table's query has a column");
    let names = named().map(|(query, letter)| (name(letter), json!(heading(query))));
    let names: Map<_, _> = names.collect();
    let transformations = json!([
        { "id": "merge", "options": {} },
        { "id": "organize", "options": { "excludeByName": { "Time": true }, "indexByName": {}, "renameByName": names } },
    ]);
    let overrides = named().filter_map(|(query, _)| {
        let unit = query.unit.as_ref()?;
        Some(json!({
            "matcher": { "id": "byName", "options": heading(query) },
            "properties": [{ "id": "unit", "value": unit }],
        }))
    });
    (transformations, overrides.collect())
}
