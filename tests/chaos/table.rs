//! The table of faults, printed and in docs/reliability.md.

use sluicegate_tests::marked;

use super::outcome::Outcome;

pub const PAGE: &str = "docs/reliability.md";
/// What the marks in the page name.
const PART: &str = "chaos";

/// The columns' titles.
const COLUMNS: [&str; 11] = [
    "fault",
    "200",
    "429",
    "503",
    "200 without a verdict",
    "connections cut",
    "hung",
    "VM reloads",
    "fullest window",
    "units lost",
    "back after",
];

pub fn text(outcomes: &[Outcome]) -> String {
    let titles = format!(
        "| {} |\n|{}\n",
        COLUMNS.join(" | "),
        "---|".repeat(COLUMNS.len())
    );
    outcomes
        .iter()
        .map(row)
        .fold(titles, |text, row| text + &row + "\n")
}

/// A line of the table.
pub fn row(one: &Outcome) -> String {
    let counts = &one.counts;
    let fullest = one.fullest.map_or_else(
        || "within the quota".to_owned(),
        |(units, quota)| format!("{units} of {quota}"),
    );
    let lost = one
        .lost_units
        .map_or_else(|| "-".to_owned(), |units| units.to_string());
    let cells = [
        one.name.to_owned(),
        counts.admitted.to_string(),
        counts.denied.to_string(),
        counts.refused.to_string(),
        counts.unmetered.to_string(),
        counts.lost.to_string(),
        counts.hung.to_string(),
        one.vm_deaths.to_string(),
        fullest,
        lost,
        format!("{:.2} s", one.back_after.as_secs_f64()),
    ];
    format!("| {} |", cells.join(" | "))
}

/// Whether the environment asks for the document to be written.
pub fn is_wanted() -> bool {
    std::env::var_os("SLUICEGATE_WRITE").is_some()
}

pub fn write(outcomes: &[Outcome]) {
    marked::write(PAGE, PART, &text(outcomes));
    println!("chaos: wrote {PAGE}");
}
