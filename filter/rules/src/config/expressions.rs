//! Compiled regular expressions, shared by their text: the sets of a VM have most of theirs in common, above all two versions
//! of the same set.

use std::cell::RefCell;
use std::rc::Rc;

use regex_lite::{Regex, RegexBuilder};

/// Largest compiled expression, in bytes. Matching takes time in proportion to this and to the length of the input,
/// which clients choose.
const MAX_BYTES: usize = 64 * 1024;

/// How many unused ones are freed for each that is compiled, so that they never become more.
const FREED_FOR_EACH: usize = 2;

thread_local! {
    /// All that are in use, and those that are not freed yet: see [`free_unused`]. By text, in order: a map would make the VM's
    /// code larger.
    static COMPILED: RefCell<Vec<(String, Rc<Regex>)>> = const { RefCell::new(Vec::new()) };
}

/// An expression that matches a whole value, as Envoy's own do: a partial match would leave a gap. So would a `.` that
/// does not match a newline, because a path or query can contain `%0A`.
pub(super) fn whole(text: &str) -> Result<Rc<Regex>, regex_lite::Error> {
    if let Some(known) = known(text) {
        return Ok(known);
    }
    free_unused(FREED_FOR_EACH);
    let compile = |text: &str| {
        let mut builder = RegexBuilder::new(text);
        builder
            .dot_matches_new_line(true)
            .size_limit(MAX_BYTES)
            .build()
    };
    // Compiled by itself first, so that a surplus `)` cannot close the group around it. The group also keeps its flags:
    // with `(?m)`, the `^` and `$` around it still mean the whole value.
    compile(text)?;
    let regex = Rc::new(compile(&format!("^(?:{text})$"))?);
    COMPILED.with_borrow_mut(|compiled| {
        if let Err(index) = index_of(compiled, text) {
            compiled.insert(index, (text.to_owned(), Rc::clone(&regex)));
        }
    });
    Ok(regex)
}

/// An expression that is compiled already.
pub(super) fn known(text: &str) -> Option<Rc<Regex>> {
    COMPILED.with_borrow(|compiled| {
        let index = index_of(compiled, text).ok()?;
        compiled.get(index).map(|(_, regex)| Rc::clone(regex))
    })
}

/// Where the expression with this text is, or should be.
fn index_of(compiled: &[(String, Rc<Regex>)], text: &str) -> Result<usize, usize> {
    compiled.binary_search_by(|(known, _)| known.as_str().cmp(text))
}

/// Frees expressions that nothing uses any more, at most so many: a large one consists of thousands of allocations, and freeing
/// the 256 of a set at once would take 12 ms.
pub fn free_unused(most: usize) {
    let mut left = most;
    COMPILED.with_borrow_mut(|compiled| {
        compiled.retain(|(_, regex)| {
            let keeps = Rc::strong_count(regex) > 1 || left == 0;
            left -= usize::from(!keeps);
            keeps
        });
    });
}
