//! `make picture`: README's first picture, docs/edge.svg, drawn from a run around a window's boundary.

use plotters::prelude::*;
use sluicegate_tests::edge::{ALGORITHMS, PER_SECONDS, QUOTA, Run, bursts_around_an_edge};
use sluicegate_tests::process::repository;

/// Pixels.
const SIZE: (u32, u32) = (860, 340);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "picture: {QUOTA} requests on each side of an edge, for {}",
        ALGORITHMS.join(" and ")
    );
    let run = bursts_around_an_edge().await;
    let path = repository("docs/edge.svg");
    std::fs::create_dir_all(repository("docs"))?;
    draw(&run, &path)?;
    for algorithm in ALGORITHMS {
        println!("picture: {algorithm} admitted {}", run.admitted(algorithm));
    }
    println!("picture: docs/edge.svg");
    Ok(())
}

fn draw(run: &Run, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!(
        "Limit {QUOTA} per {PER_SECONDS} s: admitted in the last {PER_SECONDS} s, with {QUOTA} requests on each side of an edge"
    );
    let root = root.titled(&title, ("sans-serif", 16))?;
    for (area, algorithm) in root
        .split_evenly((1, ALGORITHMS.len()))
        .iter()
        .zip(ALGORITHMS)
    {
        let admitted = admitted_in_the_last_window(run, algorithm);
        let most = admitted.iter().map(|(_, units)| *units).max().unwrap_or(0);
        let over = most > QUOTA;
        let color = if over {
            RGBColor(200, 50, 40)
        } else {
            RGBColor(30, 120, 70)
        };
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .caption(
                format!("{algorithm}: {most}"),
                ("sans-serif", 16).into_font().color(&color),
            )
            .x_label_area_size(36)
            .y_label_area_size(40)
            .build_cartesian_2d(-2.0..2.0, 0..2 * QUOTA + 10)?;
        chart
            .configure_mesh()
            .x_labels(5)
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .x_desc("seconds from the edge of the window")
            .x_label_formatter(&|seconds| format!("{seconds:.0}"))
            .draw()?;
        chart.draw_series(
            AreaSeries::new(admitted, 0, color.mix(0.25)).border_style(color.stroke_width(2)),
        )?;
        let limit = [(-2.0, QUOTA), (2.0, QUOTA)];
        chart.draw_series(DashedLineSeries::new(limit, 6, 4, BLACK.stroke_width(1)))?;
        let edge = [(0.0, 0), (0.0, 2 * QUOTA + 10)];
        chart.draw_series(DashedLineSeries::new(
            edge,
            2,
            4,
            BLACK.mix(0.5).stroke_width(1),
        ))?;
    }
    root.present()?;
    Ok(())
}

/// A step line of (seconds from the edge, units admitted in the window's length before). The run is shorter
/// than a window, so nothing has left it yet.
fn admitted_in_the_last_window(run: &Run, algorithm: &str) -> Vec<(f64, u64)> {
    let mut line = vec![(-2.0, 0)];
    let mut units = 0;
    for request in run
        .0
        .iter()
        .filter(|request| request.algorithm == algorithm && request.admitted)
    {
        line.push((request.seconds, units));
        units += 1;
        line.push((request.seconds, units));
    }
    line.push((2.0, units));
    line
}
