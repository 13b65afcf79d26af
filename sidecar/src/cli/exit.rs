//! The exit statuses of all commands: those of sysexits(3) where it has one, and the shell's for a command that cannot
//! be run.

use std::process::ExitCode;

use clap::ValueEnum;

/// How a command ended, and the exit status for it: its name in sysexits(3), if it has one, and its meaning, which `--help`,
/// the manual pages and docs/jobs.md show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Exit {
    /// success; for `decide`: admitted
    #[value(name = "EX_OK")]
    Success = 0,
    /// a system error (a port is in use, a file cannot be written), or a second signal stopped `serve`; for `check` and
    /// `check-store`: something has to be changed; for `rollout`: not every filter has the rules; for `test`: something was not as
    /// expected; for `dev`: Envoy has ended
    #[value(name = "")]
    System = 1,
    /// an error in the arguments, the policy or the configuration; also an unknown limit, or a cost above the limit's quota
    #[value(name = "EX_USAGE")]
    Usage = 64,
    /// for `settle`: nothing changed; the receipt was settled before, its time is over, or it is of another limit or key
    #[value(name = "EX_DATAERR")]
    NotSettled = 65,
    /// the sidecar or the store did not answer
    #[value(name = "EX_UNAVAILABLE")]
    Unavailable = 69,
    /// admitted, but the receipt could not be written to standard output; the units were returned
    #[value(name = "EX_IOERR")]
    NotWritten = 74,
    /// denied: nothing was taken; try again later
    #[value(name = "EX_TEMPFAIL")]
    Denied = 75,
    /// the admin token is missing or wrong
    #[value(name = "EX_NOPERM")]
    NotPermitted = 77,
    /// admitted, but the command after `--` could not be executed; its units were returned
    #[value(name = "")]
    NotExecutable = 126,
    /// admitted, but the command after `--` was not found; its units were returned
    #[value(name = "")]
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        (exit as u8).into()
    }
}

/// Every status, its name and its meaning.
fn table() -> impl Iterator<Item = (u8, String, String)> {
    Exit::value_variants().iter().filter_map(|exit| {
        let row = exit.to_possible_value()?;
        let meaning = row.get_help()?.to_string();
        Some((*exit as u8, row.get_name().to_owned(), meaning))
    })
}

/// The end of a help text: an example, the page, and the table.
pub fn after(example: &str, page: &str) -> String {
    let mut text = format!("Example:\n  {example}\n\nMore:\n  docs/{page}\n\nExit status:\n");
    for (status, name, meaning) in table() {
        text.push_str(&format!("  {status:>3}  {name:<14}  {meaning}\n"));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_documents_is_this_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/jobs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut rows = "| status | name | meaning |\n|---|---|---|\n".to_owned();
        for (status, name, meaning) in table() {
            let name = match name.as_str() {
                "" => String::new(),
                name => format!("`{name}`"),
            };
            rows += &format!("| {status} | {name} | {meaning} |\n");
        }
        assert!(page.contains(&rows), "docs/jobs.md lacks this:\n{rows}");
        assert_eq!(table().count(), 10);
    }
}
