//! The exit statuses of all commands: those of sysexits(3) where it has one, and the shell's for a command that cannot
//! be run.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success,
    System,
    Usage,
    Unavailable,
    NotWritten,
    Denied,
    NotPermitted,
    NotExecutable,
    NotFound,
}

/// A row of the table.
struct Row {
    exit: Exit,
    status: u8,
    /// The name in sysexits(3).
    name: &'static str,
    meaning: &'static str,
}

/// The table: `--help`, the manual pages and docs/jobs.md show it.
const TABLE: [Row; 9] = [
    Row {
        exit: Exit::Success,
        status: 0,
        name: "EX_OK",
        meaning: "success; for `decide`: admitted",
    },
    Row {
        exit: Exit::System,
        status: 1,
        name: "",
        meaning: "a system error (a port is in use, a file cannot be written), or a second signal stopped `serve`; for `check-store`: something has to be changed",
    },
    Row {
        exit: Exit::Usage,
        status: 64,
        name: "EX_USAGE",
        meaning: "an error in the arguments, the policy or the configuration; also an unknown limit, or a cost above the limit's quota",
    },
    Row {
        exit: Exit::Unavailable,
        status: 69,
        name: "EX_UNAVAILABLE",
        meaning: "the sidecar or the store did not answer",
    },
    Row {
        exit: Exit::NotWritten,
        status: 74,
        name: "EX_IOERR",
        meaning: "admitted, but the receipt could not be written to standard output; the units were returned",
    },
    Row {
        exit: Exit::Denied,
        status: 75,
        name: "EX_TEMPFAIL",
        meaning: "denied: nothing was taken; try again later",
    },
    Row {
        exit: Exit::NotPermitted,
        status: 77,
        name: "EX_NOPERM",
        meaning: "the admin token is missing or wrong",
    },
    Row {
        exit: Exit::NotExecutable,
        status: 126,
        name: "",
        meaning: "admitted, but the command after `--` could not be executed; its units were returned",
    },
    Row {
        exit: Exit::NotFound,
        status: 127,
        name: "",
        meaning: "admitted, but the command after `--` was not found; its units were returned",
    },
];

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        let row = TABLE.iter().find(|row| row.exit == exit);
        row.map_or(Self::FAILURE, |row| row.status.into())
    }
}

/// The end of a help text: an example and the table.
pub fn after(example: &str) -> String {
    let mut text = format!("Example:\n  {example}\n\nExit status:\n");
    for row in &TABLE {
        let Row {
            status,
            name,
            meaning,
            ..
        } = row;
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
            text += &format!("| {} | {name} | {} |\n", row.status, row.meaning);
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
            assert_eq!(ExitCode::from(row.exit), ExitCode::from(row.status));
            let others = TABLE.iter().skip(index + 1);
            assert!(others.clone().all(|other| other.status != row.status));
            assert!(others.clone().all(|other| other.exit != row.exit));
        }
    }
}
