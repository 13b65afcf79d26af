//! Compiled regular expressions, shared by their text: the sets of a VM have most of theirs in common, above all two versions
//! of the same set.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use regex_lite::{Regex, RegexBuilder};

/// Largest compiled expression, in bytes. Matching takes time in proportion to this and to the length of the input,
/// which clients choose.
const MAX_BYTES: usize = 64 * 1024;

thread_local! {
    static COMPILED: RefCell<BTreeMap<String, Weak<Regex>>> = const { RefCell::new(BTreeMap::new()) };
}

/// An expression that matches a whole value, as Envoy's own do: a partial match would leave a gap. So would a `.` that
/// does not match a newline, because a path or query can contain `%0A`.
pub(super) fn whole(text: &str) -> Result<Rc<Regex>, regex_lite::Error> {
    if let Some(known) = known(text) {
        return Ok(known);
    }
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
        compiled.retain(|_, regex| regex.strong_count() > 0);
        compiled.insert(text.to_owned(), Rc::downgrade(&regex))
    });
    Ok(regex)
}

/// An expression that is compiled already.
pub(super) fn known(text: &str) -> Option<Rc<Regex>> {
    COMPILED.with_borrow(|compiled| compiled.get(text).and_then(Weak::upgrade))
}
