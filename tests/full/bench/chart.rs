//! target/bench/end_to_end.svg: requests per second of each variant, with their spread.

use plotters::prelude::*;
use sluicegate_tests::process::repository;

use crate::Samples;
use crate::load::median;
use crate::variant::Variant;

struct Bar<'a> {
    name: &'a str,
    middle: f64,
    least: f64,
    most: f64,
}

/// Draws it.
///
/// # Panics
/// It cannot be written.
pub fn draw(samples: &Samples, variants: &[Variant], connections: u32) {
    let path = repository("target/bench/end_to_end.svg");
    let bar = |variant: &Variant| {
        let speeds: Vec<f64> = samples[&(variant.name, connections)]
            .iter()
            .map(|s| s.per_second)
            .collect();
        Bar {
            name: variant.name,
            least: speeds.iter().copied().fold(f64::MAX, f64::min),
            most: speeds.iter().copied().fold(0.0, f64::max),
            middle: median(speeds.into_iter()),
        }
    };
    let bars: Vec<_> = variants.iter().map(bar).collect();
    plot(&path, &bars, connections).expect("a chart under target");
    println!("drawn in target/bench/end_to_end.svg");
}

fn plot(
    path: &std::path::Path,
    bars: &[Bar<'_>],
    connections: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    const ROW: u32 = 36;
    let rows = u32::try_from(bars.len())?;
    let root = SVGBackend::new(path, (860, 70 + ROW * rows)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = bars.iter().map(|bar| bar.most).fold(0.0, f64::max) * 1.15;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption(
            format!("Requests a second, {connections} connections, one Envoy worker"),
            ("sans-serif", 16),
        )
        .x_label_area_size(24)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..most, 0.0..f64::from(rows))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for (bar, row) in bars.iter().zip((0..rows).rev().map(f64::from)) {
        let color = RGBColor(30, 120, 170).mix(0.6);
        chart.draw_series([Rectangle::new(
            [(0.0, row + 0.2), (bar.middle, row + 0.8)],
            color.filled(),
        )])?;
        let spread = vec![(bar.least, row + 0.5), (bar.most, row + 0.5)];
        chart.draw_series([PathElement::new(spread, BLACK.stroke_width(2))])?;
        let label = format!(" {:.0}", bar.middle);
        chart.draw_series([Text::new(label, (bar.most, row + 0.65), ("sans-serif", 13))])?;
    }
    for (bar, row) in bars.iter().zip(0..) {
        root.draw(&Text::new(
            bar.name,
            (14, 48 + ROW as i32 * row),
            ("sans-serif", 14),
        ))?;
    }
    root.present()?;
    Ok(())
}

/// A line of a chart.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Draws charts one below the other, each with a title and lines, over a logarithmic axis.
///
/// # Panics
/// They cannot be written.
pub fn lines(path: &str, charts: &[(&str, &Vec<Line>)]) {
    plot_lines(&repository(path), charts).expect("a chart under target");
    println!("drawn in {path}");
}

fn plot_lines(
    path: &std::path::Path,
    charts: &[(&str, &Vec<Line>)],
) -> Result<(), Box<dyn std::error::Error>> {
    const COLORS: [RGBColor; 2] = [RGBColor(30, 120, 170), RGBColor(200, 90, 30)];
    let rows = charts.len();
    let root = SVGBackend::new(path, (860, 280 * u32::try_from(rows)?)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, (title, lines)) in root.split_evenly((rows, 1)).iter().zip(charts) {
        let points = || lines.iter().flat_map(|line| &line.points);
        let right = points().map(|(x, _)| *x).fold(1.0, f64::max);
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max) * 1.1;
        // Where the lines are not.
        let middle = points().map(|(_, y)| *y).sum::<f64>() / points().count().max(1) as f64;
        let legend = if middle * 2.0 > top {
            SeriesLabelPosition::LowerMiddle
        } else {
            SeriesLabelPosition::UpperMiddle
        };
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .caption(title, ("sans-serif", 16))
            .x_label_area_size(24)
            .y_label_area_size(50)
            .build_cartesian_2d((1.0..right).log_scale().base(2.0), 0.0..top)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for (line, color) in lines.iter().zip(COLORS) {
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    color.stroke_width(2),
                ))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(legend)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13))
            .draw()?;
    }
    root.present()?;
    Ok(())
}

/// What variants add in one situation: each with CPU in microseconds, and latency in milliseconds.
pub struct Bars {
    pub title: String,
    pub rows: Vec<(&'static str, f64, f64)>,
}

/// Draws situations one below the other, CPU to the left and latency to the right.
///
/// # Panics
/// They cannot be written.
pub fn bars(path: &str, all: &[Bars]) {
    plot_bars(&repository(path), all).expect("a chart under target");
    println!("drawn in {path}");
}

fn plot_bars(path: &std::path::Path, all: &[Bars]) -> Result<(), Box<dyn std::error::Error>> {
    const LEFT: [i32; 2] = [215, 545];
    const WIDTH: f64 = 250.0;
    const ROW: i32 = 22;
    let lines: usize = all.iter().map(|bars| bars.rows.len() + 2).sum();
    let root = SVGBackend::new(path, (860, 40 + ROW as u32 * u32::try_from(lines)?));
    let root = root.into_drawing_area();
    root.fill(&WHITE)?;
    let text = |at, text: &str, size: i32| {
        root.draw(&Text::new(text.to_owned(), at, ("sans-serif", size)))
    };
    text((LEFT[0], 12), "CPU us added to a request", 15)?;
    text((LEFT[1], 12), "ms added to a request, mean", 15)?;
    let rows = || all.iter().flat_map(|bars| &bars.rows);
    let most = [
        rows().map(|row| row.1).fold(0.0, f64::max),
        rows().map(|row| row.2).fold(0.0, f64::max),
    ];
    let mut top = 38;
    for bars in all {
        text((14, top), &bars.title, 15)?;
        for (row, color) in bars.rows.iter().zip([30, 120, 200]) {
            top += ROW;
            text((14, top + 3), row.0, 14)?;
            for (left, (value, most)) in LEFT.iter().zip([(row.1, most[0]), (row.2, most[1])]) {
                let right = left + (value.max(0.0) / most * WIDTH) as i32;
                let color = RGBColor(color, 120, 170).mix(0.6).filled();
                root.draw(&Rectangle::new(
                    [(*left, top), (right, top + ROW - 5)],
                    color,
                ))?;
                let digits = if most < 10.0 { 2 } else { 0 };
                text((right + 5, top + 3), &format!("{value:.digits$}"), 13)?;
            }
        }
        top += ROW * 3 / 2;
    }
    root.present()?;
    Ok(())
}
