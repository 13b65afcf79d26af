//! Rules with short durations: the same file with seconds instead of minutes, so that a test need not wait.

/// Replaces every range, such as `[5m]`.
const RANGE: &str = "6s";
/// Replaces every `for:` of an alert.
const WAIT: &str = "1s";

/// A file of rules with short durations.
pub fn shorten(rules: &str) -> String {
    let short = with_durations(rules, RANGE, WAIT);
    // Nothing but durations has changed.
    let [one, other] = [&short, rules].map(|rules| with_durations(rules, "*", "*"));
    assert_eq!(one, other);
    assert_ne!(short, rules);
    short
}

/// Replaces every range in brackets and every `for:`.
fn with_durations(rules: &str, range: &str, wait: &str) -> String {
    let lines = rules.lines().map(|line| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: {wait}\n"),
        _ => with_ranges(line, range) + "\n",
    });
    lines.collect()
}

fn with_ranges(line: &str, range: &str) -> String {
    let mut parts = line.split('[');
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((inside, rest)) if is_duration(inside) => made += &format!("[{range}]{rest}"),
            _ => made += &format!("[{part}"),
        }
    }
    made
}

/// Whether a text is a number and a unit, or the mark `*` that stands for one.
fn is_duration(text: &str) -> bool {
    let number = text.strip_suffix(['s', 'm', 'h']);
    text == "*" || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[test]
fn only_durations_change() {
    let rules =
        "- alert: A\n  expr: rate(x[5m]) > 3 and y:rate5m[1h]\n  for: 10m\n  annotations: [a, b]\n";
    let short =
        "- alert: A\n  expr: rate(x[6s]) > 3 and y:rate5m[6s]\n  for: 1s\n  annotations: [a, b]\n";
    assert_eq!(shorten(rules), short);
}
