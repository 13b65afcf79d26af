//! `sluicegate`: arguments and exit codes. What each command does is in `cli/`.

mod cli;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(serve) => serve.run().await,
        Command::Estimate(estimate) => estimate.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sluicegate: {failure}");
            failure.status()
        }
    }
}
