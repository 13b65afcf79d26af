//! Draws each dashboard from Prometheus's answers: target/dashboards/NAME.svg. For a developer's eye: a nonsensical
//! query shows there before it shows in Grafana.

use std::collections::BTreeMap;
use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;
use sluicegate_tests::process::repository;
use sluicegate_tests_full::prometheus::Series;

use super::grafana::COLUMNS;
use super::panels::{Shown, View};
use super::units::format_value;

/// Pixels of a column and of a row of Grafana's grid.
const CELL: (u32, u32) = (56, 34);
const TEXT: (&str, i32) = ("sans-serif", 13);
const LINE: i32 = 16;
/// Lines of a legend that are shown.
const MAX_LEGEND_LINES: usize = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Draws all panels of a page.
pub fn draw(name: &str, page: &Value, shown: &[Shown<'_>], view: &View<'_>) {
    let folder = repository("target/dashboards");
    std::fs::create_dir_all(&folder).unwrap();
    sheet(&folder.join(format!("{name}.svg")), page, shown, view).unwrap();
}

fn sheet(path: &std::path::Path, page: &Value, shown: &[Shown<'_>], view: &View<'_>) -> Drawn {
    let all = page["panels"].as_array().ok_or("no panels")?;
    let rows = all
        .iter()
        .map(|panel| grid_position(panel, "y") + grid_position(panel, "h"))
        .max()
        .unwrap_or(0);
    let root = SVGBackend::new(path, (COLUMNS * CELL.0, rows * CELL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    for row in all.iter().filter(|panel| panel["type"] == "row") {
        let title = row["title"].as_str().unwrap_or_default();
        panel_area(&root, row).draw(&Text::new(title, (8, 10), ("sans-serif", 16)))?;
    }
    for one in shown {
        let area = panel_area(&root, one.panel).margin(3, 3, 3, 3);
        let (width, height) = area.dim_in_pixel();
        let frame = Rectangle::new(
            [(0, 0), (width as i32 - 1, height as i32 - 1)],
            RGBColor(200, 200, 200),
        );
        area.draw(&frame)?;
        area.draw(&Text::new(
            one.panel["title"].as_str().unwrap_or_default(),
            (8, 6),
            ("sans-serif", 14),
        ))?;
        let inside = area.margin(26, 4, 8, 8);
        match one.panel["type"].as_str() {
            Some("stat") => stat(&inside, one, view)?,
            Some("bargauge") => bars(&inside, one, view)?,
            Some("heatmap") => heatmap(&inside, one, view)?,
            Some("table") => table(&inside, one, view)?,
            _ => lines(&inside, one, view)?,
        }
    }
    root.present()?;
    Ok(())
}

fn grid_position(panel: &Value, field: &str) -> u32 {
    panel["gridPos"][field]
        .as_u64()
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(0)
}

fn panel_area<'a>(root: &Area<'a>, panel: &Value) -> Area<'a> {
    let corner = (
        grid_position(panel, "x") * CELL.0,
        grid_position(panel, "y") * CELL.1,
    );
    root.clone().shrink(
        corner,
        (
            grid_position(panel, "w") * CELL.0,
            grid_position(panel, "h") * CELL.1,
        ),
    )
}

fn unit(panel: &Value) -> &str {
    panel["fieldConfig"]["defaults"]["unit"]
        .as_str()
        .unwrap_or_default()
}

/// Each series with its legend.
fn named<'s>(shown: &'s Shown<'_>) -> Vec<(String, &'s Series)> {
    let all = shown.queries.iter();
    all.flat_map(|(legend, series)| {
        series.iter().map(move |one| {
            let mut name = legend.clone();
            for (label, value) in &one.labels {
                name = name.replace(&format!("{{{{{label}}}}}"), value);
            }
            (name, one)
        })
    })
    .collect()
}

fn stat(area: &Area<'_>, shown: &Shown<'_>, view: &View<'_>) -> Drawn {
    let Some((_, series)) = named(shown).into_iter().next() else {
        return Ok(());
    };
    let word = &shown.panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        [series.last().to_string()];
    let text = word["text"].as_str().map_or_else(
        || format_value(unit(shown.panel), series.last(), view.to),
        str::to_owned,
    );
    area.draw(&Text::new(text, (8, 30), ("sans-serif", 28)))?;
    Ok(())
}

fn lines(area: &Area<'_>, shown: &Shown<'_>, view: &View<'_>) -> Drawn {
    let unit = unit(shown.panel);
    let mut all = named(shown);
    let most = |series: &Series| {
        series
            .points
            .iter()
            .map(|point| point.1)
            .fold(0.0, f64::max)
    };
    all.sort_by(|one, other| most(other.1).total_cmp(&most(one.1)));
    let top = all.first().map_or(0.0, |(_, series)| most(series)) * 1.05;
    let log =
        shown.panel["fieldConfig"]["defaults"]["custom"]["scaleDistribution"]["type"] == "log";
    let points = || {
        all.iter()
            .flat_map(|(_, series)| &series.points)
            .map(|point| point.1)
    };
    let least = points().filter(|y| *y > 0.0).fold(top, f64::min);
    let height_of = |y: f64| if log { y.max(least).log10() } else { y };
    let heights = if log {
        height_of(least)..height_of(top)
    } else {
        0.0..top.max(1e-6)
    };
    let legend = LINE * all.len().min(MAX_LEGEND_LINES) as i32;
    let height = area.dim_in_pixel().1 as i32 - legend;
    let (plot, below) = area.split_vertically(height);
    let mut chart = ChartBuilder::on(&plot)
        .x_label_area_size(20)
        .y_label_area_size(70)
        .margin_right(8)
        .build_cartesian_2d(0.0..view.to - view.from, heights)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(6)
        .y_labels(5)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| format_value(unit, if log { 10_f64.powf(*y) } else { *y }, view.to))
        .draw()?;
    for (n, (name, series)) in all.iter().enumerate() {
        let color = Palette99::pick(n).mix(1.0);
        // A gap where there is no data, as in Grafana.
        for run in series.points.chunk_by(|one, next| next.0 - one.0 < 1.5) {
            let points = run
                .iter()
                .map(|point| (point.0 - view.from, height_of(point.1)));
            chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
        }
        if n < MAX_LEGEND_LINES {
            let y = LINE * n as i32;
            below.draw(&Rectangle::new([(6, y + 4), (16, y + 9)], color.filled()))?;
            let text = format!(
                "{name}   last {}, max {}",
                format_value(unit, series.last(), view.to),
                format_value(unit, most(series), view.to)
            );
            below.draw(&Text::new(text, (22, y), TEXT))?;
        }
    }
    Ok(())
}

fn bars(area: &Area<'_>, shown: &Shown<'_>, view: &View<'_>) -> Drawn {
    let all = named(shown);
    let most = all
        .iter()
        .map(|(_, series)| series.last())
        .fold(0.0, f64::max);
    let full = shown.panel["fieldConfig"]["defaults"]["max"]
        .as_f64()
        .unwrap_or(most);
    let width = f64::from(area.dim_in_pixel().0) - 200.0;
    for (n, (name, series)) in all.iter().enumerate() {
        let y = 8 + 24 * n as i32;
        let length = (series.last() / full.max(1e-9) * width) as i32;
        area.draw(&Text::new(name.as_str(), (4, y), TEXT))?;
        area.draw(&Rectangle::new(
            [(120, y), (120 + length, y + LINE)],
            RGBColor(30, 120, 170).mix(0.6).filled(),
        ))?;
        area.draw(&Text::new(
            format_value(unit(shown.panel), series.last(), view.to),
            (126 + length, y),
            TEXT,
        ))?;
    }
    Ok(())
}

/// Prometheus's buckets are cumulative, so each value is the difference from the bucket below.
fn heatmap(area: &Area<'_>, shown: &Shown<'_>, view: &View<'_>) -> Drawn {
    let bound = |series: &Series| series.label("le").parse().unwrap_or(f64::INFINITY);
    let mut buckets: Vec<_> = named(shown).into_iter().map(|(_, series)| series).collect();
    buckets.sort_by(|one, other| bound(one).total_cmp(&bound(other)));
    let mut cells = Vec::new();
    let mut below: BTreeMap<i64, f64> = BTreeMap::new();
    for (row, bucket) in buckets.iter().enumerate() {
        for (time, value) in &bucket.points {
            let second = (time - view.from) as i64;
            let smaller = below.insert(second, *value).unwrap_or(0.0);
            cells.push((second, row, value - smaller));
        }
    }
    let most = cells.iter().map(|cell| cell.2).fold(1e-9, f64::max);
    let rows = buckets.len();
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(20)
        .y_label_area_size(70)
        .margin_right(8)
        .build_cartesian_2d(0.0..view.to - view.from, 0.0..rows as f64)?;
    // The line between two rows is the upper bound of the lower one.
    let name = |y: &f64| match (*y as usize).checked_sub(1).map(|row| bound(buckets[row])) {
        Some(le) if le.is_finite() => format_value(unit(shown.panel), le, view.to),
        Some(_) => "more".to_owned(),
        None => String::new(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(6)
        .y_labels(rows)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&name)
        .draw()?;
    for (second, row, value) in cells.into_iter().filter(|cell| cell.2 > 0.0) {
        let (x, y) = (second as f64, row as f64);
        let shade = RGBColor(20, 80, 140).mix(0.15 + 0.85 * (value / most).sqrt());
        chart.draw_series([Rectangle::new([(x, y), (x + 1.0, y + 1.0)], shade.filled())])?;
    }
    Ok(())
}

/// One row per set of labels; columns are the labels and each query's value.
fn table(area: &Area<'_>, shown: &Shown<'_>, view: &View<'_>) -> Drawn {
    let mut rows: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    let names: std::collections::BTreeSet<_> = shown
        .queries
        .iter()
        .flat_map(|(_, series)| series)
        .flat_map(|one| one.labels.keys().cloned())
        .collect();
    let overrides = shown.panel["fieldConfig"]["overrides"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut headings: Vec<_> = names.iter().cloned().collect();
    let renamed = &shown.panel["transformations"][1]["options"]["renameByName"];
    for ((_, series), letter) in shown.queries.iter().zip('A'..) {
        let heading = renamed[format!("Value #{letter}")]
            .as_str()
            .unwrap_or("Value");
        headings.push(heading.to_owned());
        let unit = overrides
            .iter()
            .find(|one| one["matcher"]["options"] == heading);
        let unit = unit
            .and_then(|one| one["properties"][0]["value"].as_str())
            .unwrap_or_default();
        for one in series {
            let key = names
                .iter()
                .map(|name| one.label(name).to_owned())
                .collect();
            rows.entry(key)
                .or_default()
                .push(format_value(unit, one.last(), view.to));
        }
    }
    let width = area.dim_in_pixel().0 as i32 / headings.len().max(1) as i32;
    let body = rows.into_iter().map(|(key, values)| [key, values].concat());
    for (n, line) in std::iter::once(headings).chain(body).enumerate() {
        for (column, text) in line.iter().enumerate() {
            area.draw(&Text::new(
                text.as_str(),
                (4 + width * column as i32, 6 + 20 * n as i32),
                TEXT,
            ))?;
        }
    }
    Ok(())
}
