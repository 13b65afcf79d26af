//! Generates the JSON that Grafana 10 and 11 read from the description.

use serde_json::{Map, Value, json};

use super::description::{Annotation, Dashboard, Description, Kind, Panel, Query, Row, Variable};

/// Columns of Grafana's grid.
pub const COLUMNS: u32 = 24;
/// The version of the format, introduced by Grafana 10.1; newer versions read it.
const SCHEMA_VERSION: u32 = 39;
/// The variable at the top of each page that selects the Prometheus.
const SOURCE: &str = "${datasource}";

/// Each dashboard's path in the repository, and its content.
pub fn files(description: &Description) -> Vec<(String, Value)> {
    let all = description.dashboards.iter();
    all.map(|dashboard| {
        let path = format!("deploy/grafana/dashboards/{}.json", dashboard.name);
        (path, page(description, dashboard))
    })
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
    let links: Vec<_> = others
        .filter(|other| other.name != dashboard.name)
        .map(|other| {
            json!({
                "type": "link", "title": other.title, "tooltip": other.says, "icon": "dashboard",
                "url": format!("/d/{}", uid(other)), "keepTime": true, "includeVars": true,
                "asDropdown": false, "targetBlank": false, "tags": [],
            })
        })
        .collect();
    let annotations = description.annotations.iter();
    let annotations: Vec<_> = annotations
        .map(|one| annotation(description, one))
        .collect();
    let mut variables = vec![json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "refresh": 1, "hide": 0, "includeAll": false, "multi": false, "current": {},
    })];
    variables.extend(description.variables.iter().map(variable));
    json!({
        "uid": uid(dashboard),
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["sluicegate"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1, // one crosshair through all charts
        "timezone": "browser",
        "time": { "from": "now-1h", "to": "now" },
        "refresh": "10s",
        "annotations": { "list": annotations },
        "links": links,
        "templating": { "list": variables },
        "panels": panels(description, dashboard),
    })
}

fn annotation(description: &Description, annotation: &Annotation) -> Value {
    json!({
        "name": annotation.name, "datasource": source(), "enable": true, "hide": false,
        "iconColor": annotation.color, "expr": description.selected(&annotation.query),
        "titleFormat": annotation.text, "textFormat": "", "tagKeys": "", "step": "",
    })
}

fn variable(variable: &Variable) -> Value {
    json!({
        "name": variable.name, "label": variable.label, "type": "query", "datasource": source(),
        "definition": variable.values,
        "query": { "query": variable.values, "refId": variable.name },
        "includeAll": true,
        "allValue": ".*", // also matches a missing label
        "multi": true,
        "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
        "refresh": 2, // whenever the time span changes: sidecars come and go
        "sort": 1, "hide": 0, "regex": "", "options": [], "skipUrlSync": false,
    })
}

/// All rows below one another, every panel with its position.
fn panels(description: &Description, dashboard: &Dashboard) -> Vec<Value> {
    let (mut made, mut top) = (Vec::new(), 0);
    for row in &dashboard.rows {
        if let Some(title) = &row.title {
            made.push(json!({
                "id": made.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
                "gridPos": { "x": 0, "y": top, "w": COLUMNS, "h": 1 },
            }));
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
    let position = |n: u32| {
        (
            n * width,
            if n + 1 == count {
                COLUMNS - n * width
            } else {
                width
            },
        )
    };
    (0..count).map(position).collect()
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
        let scale = if panel.log {
            json!({ "type": "log", "log": 10 })
        } else {
            json!({ "type": "linear" })
        };
        defaults["custom"] = json!({
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": if panel.log { 0 } else { 10 },
            "showPoints": "never", "spanNulls": false, "scaleDistribution": scale,
        });
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
    all.extend(
        steps
            .iter()
            .map(|(color, value)| json!({ "color": color, "value": value })),
    );
    json!({ "mode": "absolute", "steps": all })
}

fn mappings(panel: &Panel) -> Value {
    if panel.values.is_empty() {
        return json!([]);
    }
    let words = panel.values.iter().zip(0..);
    let words: Map<_, _> = words
        .map(|((value, word), index)| {
            (
                value.clone(),
                json!({ "text": word.text, "color": word.color, "index": index }),
            )
        })
        .collect();
    json!([{ "type": "value", "options": words }])
}

fn options(panel: &Panel) -> Value {
    let reduce = json!({ "calcs": ["lastNotNull"], "fields": "", "values": false });
    match panel.kind {
        Kind::Stat => json!({
            "reduceOptions": reduce, "colorMode": "value", "textMode": "auto", "justifyMode": "auto",
            "graphMode": if panel.values.is_empty() && !panel.now { "area" } else { "none" },
            "orientation": "auto",
        }),
        Kind::Timeseries => json!({
            "legend": {
                "showLegend": true, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"],
                "sortBy": "Max", "sortDesc": true,
            },
            "tooltip": { "mode": "multi", "sort": "desc" },
        }),
        Kind::Bars => json!({
            "reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": true,
            "valueMode": "color", "minVizWidth": 8, "minVizHeight": 16,
        }),
        Kind::Heatmap => json!({
            "calculate": false, "cellGap": 1, "showValue": "never", "legend": { "show": true },
            "color": { "mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5, "scale": "exponential",
                "fill": "dark-orange", "reverse": false },
            "yAxis": { "axisPlacement": "left", "reverse": false, "unit": panel.unit },
            "rowsFrame": { "layout": "auto" }, "exemplars": { "color": "rgba(255,0,255,0.7)" },
            "filterValues": { "le": 1e-9 }, "tooltip": { "mode": "single", "yHistogram": false, "showColorScale": false },
        }),
        Kind::Table => {
            json!({ "showHeader": true, "cellHeight": "sm", "footer": { "show": false } })
        }
    }
}

/// A table's columns: all queries side by side, with the headings and units of the description.
fn columns(panel: &Panel) -> (Value, Value) {
    let named = || panel.queries.iter().zip('A'..='Z');
    let name = |letter: char| match panel.queries.len() {
        1 => "Value".to_owned(),
        _ => format!("Value #{letter}"),
    };
    let heading = |query: &Query| query.column.clone().expect("a table's query has a column");
    let names: Map<_, _> = named()
        .map(|(query, letter)| (name(letter), json!(heading(query))))
        .collect();
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
