//! The table, printed and in docs/reliability.md.

use sluicegate_tests::marked;

use crate::outcome::Outcome;

const PAGE: &str = "docs/reliability.md";
/// What the marks in the page name.
const PART: &str = "chaos";

pub fn text(outcomes: &[Outcome]) -> String {
    let mut text = "| fault | 200 | 429 | 503 | 200 without a verdict | connections cut | hung | VM reloads | fullest window | units lost | back after |\n".to_owned();
    text += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for one in outcomes {
        let counts = &one.counts;
        let fullest = one.fullest.map_or_else(
            || "within the quota".to_owned(),
            |(units, quota)| format!("{units} of {quota}"),
        );
        let lost = one
            .lost_units
            .map_or_else(|| "-".to_owned(), |units| units.to_string());
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {fullest} | {lost} | {:.2} s |\n",
            one.name,
            counts.admitted,
            counts.denied,
            counts.refused,
            counts.unmetered,
            counts.lost,
            counts.hung,
            one.vm_deaths,
            one.back_after.as_secs_f64(),
        );
    }
    text
}

/// Whether the environment asks for the document to be written.
pub fn is_wanted() -> bool {
    std::env::var_os("SLUICEGATE_WRITE").is_some()
}

pub fn write(outcomes: &[Outcome]) {
    marked::write(PAGE, PART, &text(outcomes));
    println!("chaos: wrote {PAGE}");
}
