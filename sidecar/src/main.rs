//! `sluicegate`: arguments and exit codes. The commands are in `cli/`.
#![deny(
    clippy::print_stdout,
    reason = "it panics when standard output is closed: use `cli/stdout.rs`"
)]

mod cli;

use std::process::ExitCode;

use clap::Parser;
use cli::Failure;
use cli::arguments::Arguments;
use cli::exit::Exit;
use tokio::runtime::Builder;

// glibc's allocator does not return memory below a block that is still in use: after a flood of keys, none of it.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return cli::refuse(&error),
    };
    match run(arguments) {
        Ok(exit) => exit.into(),
        Err(failure) => cli::report(&failure),
    }
}

fn run(arguments: Arguments) -> Result<Exit, Failure> {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(arguments.threads()).enable_all();
    let runtime = runtime.build().map_err(Failure::system)?;
    let done = runtime.block_on(arguments.run());
    // A thread in a DNS lookup may hang; do not wait for it, so that the process ends within `--shutdown-timeout`.
    runtime.shutdown_background();
    done
}
