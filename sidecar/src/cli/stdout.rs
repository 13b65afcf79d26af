//! Standard output. `println!` panics when the reader closes the pipe, as `| head -1` does.

use std::io::{ErrorKind, Write};

use super::Failure;

/// Adds a line to a text.
macro_rules! line {
    ($text:expr, $($line:tt)*) => {{
        $text.push_str(&format!($($line)*));
        $text.push('\n');
    }};
}
pub(crate) use line;

/// Prints a text. A closed pipe is not an error: the reader has what it wanted.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::system(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}
