//! Parts of documents that a run writes, between two marks: `<!-- NAME: ... -->` and `<!-- end of NAME -->`.

use crate::process::repository;

/// Replaces the part called `name` of a document with `text`.
///
/// # Panics
/// The document cannot be read or written, or has no such marks.
pub fn write(document: &str, name: &str, text: &str) {
    let path = repository(document);
    let mut page = std::fs::read_to_string(&path).expect(document);
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- end of {name} -->"));
    let start = page
        .find(&begin)
        .and_then(|at| Some(at + page[at..].find('\n')? + 1));
    let stop = page.find(&end);
    let (Some(start), Some(stop)) = (start, stop) else {
        panic!("{document} has no marks of {name}")
    };
    page.replace_range(start..stop, &format!("\n{text}\n"));
    std::fs::write(&path, page).expect(document);
}
