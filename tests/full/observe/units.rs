//! Formats values as Grafana does, by Grafana's names of units.

/// A value with its unit. `now` is in seconds since 1970.
pub fn format_value(unit: &str, value: f64, now: f64) -> String {
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "reqps" => format!("{} req/s", short(value)),
        "ops" => format!("{} ops/s", short(value)),
        "bytes" => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB"]),
        "s" if value < 0.001 => format!("{} µs", short(value * 1e6)),
        "s" if value < 1.0 => format!("{} ms", short(value * 1e3)),
        "s" => format!("{} s", short(value)),
        "dateTimeFromNow" => format!("{:.0} s ago", now - value / 1e3),
        "" | "none" | "short" => scaled(value, 1000.0, &["", "K", "Mil", "Bil"]),
        other => panic!("no format for the unit {other}"),
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = units[0];
    for next in &units[1..] {
        if value < step {
            break;
        }
        value /= step;
        unit = next;
    }
    format!("{} {unit}", short(value)).trim_end().to_owned()
}

/// Three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 0.1 => 4,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[test]
fn values_are_formatted_with_their_units() {
    let format_value = |unit, value| format_value(unit, value, 0.0);
    assert_eq!(format_value("percentunit", 0.256), "25.6 %");
    assert_eq!(format_value("s", 0.000_25), "250 µs");
    assert_eq!(format_value("s", 0.0125), "12.5 ms");
    assert_eq!(format_value("bytes", 3.0 * 1024.0 * 1024.0), "3 MiB");
    assert_eq!(format_value("short", 1234.0), "1.23 K");
    assert_eq!(format_value("short", 0.0125), "0.0125");
    assert_eq!(format_value("reqps", 0.0), "0 req/s");
    assert_eq!(format_value("reqps", 10.0), "10 req/s");
}
