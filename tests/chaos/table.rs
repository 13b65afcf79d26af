//! The table of faults, printed and in docs/faults.md.

use sluicegate_tests::marked;

use super::outcome::Outcome;

pub const PAGE: &str = "docs/faults.md";
/// What the marks in the page name.
const PART: &str = "chaos";

/// The columns' titles.
const TITLES: &str = "\
| fault | 200 | 429 | 503 | 200 without a verdict | connections cut | hung | VM reloads | fullest window | units lost | back after |
|---|---|---|---|---|---|---|---|---|---|---|
";

pub fn text(outcomes: &[Outcome]) -> String {
    let rows = outcomes.iter().map(row);
    rows.fold(TITLES.to_owned(), |text, row| text + &row + "\n")
}

/// A line of the table.
pub fn row(one: &Outcome) -> String {
    let counts = &one.counts;
    let fullest = match one.fullest {
        Some((units, quota)) => format!("{units} of {quota}"),
        None => "within the quota".to_owned(),
    };
    let lost = one.lost_units.map(|units| units.to_string());
    let lost = lost.as_deref().unwrap_or("-");
    let [admitted, denied, refused] = [counts.admitted, counts.denied, counts.refused];
    let answers = format!("{admitted} | {denied} | {refused} | {}", counts.unmetered);
    let broken = format!("{} | {} | {}", counts.lost, counts.hung, one.vm_deaths);
    let back = one.back_after.as_secs_f64();
    format!(
        "| {} | {answers} | {broken} | {fullest} | {lost} | {back:.2} s |",
        one.name
    )
}

/// Whether the environment asks for the document to be written.
pub fn is_wanted() -> bool {
    std::env::var_os("SLUICEGATE_WRITE").is_some()
}

pub fn write(outcomes: &[Outcome]) {
    marked::write(PAGE, PART, &text(outcomes));
    println!("chaos: wrote {PAGE}");
}
