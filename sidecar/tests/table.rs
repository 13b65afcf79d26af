//! Tables of cases as text, a line each. The unit tests in `src` use this file too.

/// The rows of a table in a text: its cells without the space around them, `\n` as a new line; no comments.
pub fn rows<const CELLS: usize>(table: &str) -> impl Iterator<Item = [String; CELLS]> {
    let rows = table.lines().map(str::trim);
    let rows = rows.filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| {
        let cells = row.split('|').map(|cell| cell.trim().replace("\\n", "\n"));
        let cells: Vec<_> = cells.collect();
        let cells = cells.try_into();
        cells.unwrap_or_else(|_| panic!("not {CELLS} cells: {row}"))
    })
}

/// Whether a text has all the parts that a cell names, with commas between them.
#[track_caller]
pub fn has_all(text: &str, parts: &str) {
    for part in parts.split(", ") {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}
