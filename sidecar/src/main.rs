//! `sluicegate`: arguments and exit codes. What each command does is in `cli/`.
#![deny(
    clippy::print_stdout,
    reason = "it panics where nobody reads: `cli/stdout.rs`"
)]

mod cli;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cli::Failure;
use tokio::runtime::Runtime;

// The system's (glibc's) keeps what was freed below anything that stays: after a flood of keys, all of it for good.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Rate limits for Envoy that are exact.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decide for the Envoy beside this process, and for anyone with HTTP.
    Serve(cli::serve::Serve),
    /// Tell how many bytes a policy will take in Redis.
    Estimate(cli::estimate::Estimate),
    /// Find what is wrong with the filter's configuration and the policy before a request does.
    CheckConfig(cli::check_config::CheckConfig),
    /// Tell which rules match a request, and which limits it would meet under which keys.
    Explain(cli::explain::Explain),
    /// Tell who is being denied and who is near a limit, from a running sidecar.
    Top(cli::top::Tell),
    /// Print the JSON Schema of the filter's configuration.
    Schema,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return cli::refuse(&error),
    };
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody may be reading, which is no reason to end in another way.
            let why = cli::without_urls(failure.to_string());
            let _ = writeln!(std::io::stderr(), "sluicegate: {why}");
            failure.status()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(Failure::system)?;
    let done = runtime.block_on(async {
        match command {
            Command::Serve(serve) => serve.run().await,
            Command::Estimate(estimate) => estimate.run(),
            Command::CheckConfig(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Top(top) => top.run().await,
            Command::Schema => cli::schema::run(),
        }
    });
    // A thread that looks up a name may hang; an end within `--shutdown-timeout` does not wait for it.
    runtime.shutdown_background();
    done
}
