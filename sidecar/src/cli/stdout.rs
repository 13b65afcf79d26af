//! Standard output and error. `println!` panics when the reader closes the pipe, as `| head -1` does.

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
    match write(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system(not_written(&error)))
        }
        _ => Ok(()),
    }
}

/// Prints a text on standard error. That this is closed changes nothing.
pub fn eprint(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints a text that must not be lost.
pub fn write(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The message for an error of standard output.
pub fn not_written(error: &std::io::Error) -> String {
    format!("cannot write to standard output: {error}")
}
