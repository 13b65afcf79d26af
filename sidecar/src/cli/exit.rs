//! The exit statuses of all commands: those of sysexits(3) where it has one, and the shell's for a command that cannot
//! be run.

use std::process::ExitCode;

/// How a command ended, and the exit status for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    System = 1,
    Usage = 64,
    Unavailable = 69,
    NotWritten = 74,
    Denied = 75,
    NotPermitted = 77,
    NotExecutable = 126,
    NotFound = 127,
}

/// A row of the table.
struct Row {
    exit: Exit,
    /// The name in sysexits(3).
    name: &'static str,
    meaning: &'static str,
}

/// The table: `--help`, the manual pages and docs/jobs.md show it.
const TABLE: [Row; 9] = [
    Row {
        exit: Exit::Success,
        name: "EX_OK",
        meaning: "success; for `decide`: admitted",
    },
    Row {
        exit: Exit::System,
        name: "",
        meaning: "a system error (a port is in use, a file cannot be written), or a second signal stopped `serve`; for `check-store`: something has to be changed; for `rollout`: not every filter has the rules",
    },
    Row {
        exit: Exit::Usage,
        name: "EX_USAGE",
        meaning: "an error in the arguments, the policy or the configuration; also an unknown limit, or a cost above the limit's quota",
    },
    Row {
        exit: Exit::Unavailable,
        name: "EX_UNAVAILABLE",
        meaning: "the sidecar or the store did not answer",
    },
    Row {
        exit: Exit::NotWritten,
        name: "EX_IOERR",
        meaning: "admitted, but the receipt could not be written to standard output; the units were returned",
    },
    Row {
        exit: Exit::Denied,
        name: "EX_TEMPFAIL",
        meaning: "denied: nothing was taken; try again later",
    },
    Row {
        exit: Exit::NotPermitted,
        name: "EX_NOPERM",
        meaning: "the admin token is missing or wrong",
    },
    Row {
        exit: Exit::NotExecutable,
        name: "",
        meaning: "admitted, but the command after `--` could not be executed; its units were returned",
    },
    Row {
        exit: Exit::NotFound,
        name: "",
        meaning: "admitted, but the command after `--` was not found; its units were returned",
    },
];

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        (exit as u8).into()
    }
}

/// The end of a help text: an example and the table.
pub fn after(example: &str) -> String {
    let mut text = format!("Example:\n  {example}\n\nExit status:\n");
    for row in &TABLE {
        let (status, name, meaning) = (row.exit as u8, row.name, row.meaning);
        text.push_str(&format!("  {status:>3}  {name:<14}  {meaning}\n"));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markdown() -> String {
        let mut text = "| status | name | meaning |\n|---|---|---|\n".to_owned();
        for row in &TABLE {
            let name = match row.name {
                "" => String::new(),
                name => format!("`{name}`"),
            };
            text += &format!("| {} | {name} | {} |\n", row.exit as u8, row.meaning);
        }
        text
    }

    #[test]
    fn the_table_in_the_documents_is_this_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/jobs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = markdown();
        assert!(page.contains(&table), "docs/jobs.md lacks this:\n{table}");
    }

    #[test]
    fn every_status_is_in_the_table_once() {
        for (index, row) in TABLE.iter().enumerate() {
            let mut others = TABLE.iter().skip(index + 1);
            assert!(others.all(|other| other.exit != row.exit));
        }
    }
}
