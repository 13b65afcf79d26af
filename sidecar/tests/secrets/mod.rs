//! No output of the program has the password of `store`, whatever is wrong with a policy.
//! Finding S21: the parser quoted the lines around an error, and with them the URL of the store.
//!
//! The real program meets each kind of broken file with each form of a Redis URL: at the start, in every command that
//! reads a policy, and on reload, which shows in the log, `/readyz`, `/metrics` and the live page.
//!
//! | module | for |
//! |---|---|
//! | `broken` | the broken policies |
//! | `start` | broken policies, variables and arguments at the start |
//! | `reload` | broken policies on reload |
//! | `redis_echo` | a Redis that repeats the password |

mod broken;
mod redis_echo;
mod reload;
mod start;

use super::running::{Folder, Running};
use super::support::{finish, sluicegate};
use broken::{BROKEN, GOOD, SECRET, STORES};

/// All broken files: a name, the content, and what the message must contain.
fn broken_files(store: &str) -> Vec<(String, Vec<u8>, &'static [&'static str])> {
    let mut files: Vec<_> = BROKEN
        .iter()
        .map(|(from, to, named)| {
            assert!(GOOD.contains(from), "{from} is not in the file");
            let text = GOOD.replacen(from, to, 1).replace("STORE", store);
            (format!("{from} -> {to}"), text.into_bytes(), *named)
        })
        .collect();
    let mut latin = GOOD.replace("STORE", store).into_bytes();
    latin.extend(b"# caf\xe9\n");
    files.push(("not UTF-8".to_owned(), latin, &["UTF-8"]));
    files
}

/// Fails with all of `leaks` at once.
fn assert_none(leaks: &[String]) {
    assert!(leaks.is_empty(), "{}:\n{}", leaks.len(), leaks.join("\n"));
}

#[test]
fn the_debug_form_of_a_policy_has_no_password() {
    for store in STORES {
        let text = GOOD.replace("STORE", store);
        let policy = sluicegate::policy::Policy::parse(&text).unwrap();
        assert!(!format!("{policy:?} {policy:#?}").contains(SECRET));
    }
}
