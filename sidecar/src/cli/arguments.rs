//! The command line of `sluicegate`: `--help`, completions and manual pages are generated from it.

use clap::{CommandFactory, Parser, Subcommand};

use super::exit::{self, Exit};
use super::{
    Failure, check, check_config, check_store, compare, completions, consumers, decide, dev,
    drain_envoy, explain, import, man, overrides, peek, render, reset, rollout, schema, serve,
    settle, top, trial,
};

/// Exact rate limits, for Envoy and for jobs.
#[derive(Parser)]
#[command(
    name = "sluicegate",
    version,
    propagate_version = true,
    after_help = exit::after("sluicegate serve --policy policy.yaml", "README.md")
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the sidecar, which makes decisions for Envoy and for any HTTP client.
    Serve(serve::Serve),
    /// Run a sidecar and an Envoy in front of a server of yours, to try a policy.
    Dev(dev::Dev),
    /// Print the parts that belong into an Envoy configuration that exists.
    Render(render::Render),
    /// Take units from a limit, and run a command if they are admitted.
    Decide(decide::Decide),
    /// Hold a slot of a limit while a command runs.
    Run(decide::run::Run),
    /// Show how many units of a limit are left and when more become available, without taking any.
    Peek(peek::Peek),
    /// Tell what units that `decide` took have cost in fact: the others come back, or more are taken.
    Settle(settle::Settle),
    /// Restore the whole quota of a limit for a key, or free its slots.
    Reset(reset::Reset),
    /// Give single keys another quota, lift their limit or block them, on all running sidecars.
    #[command(subcommand)]
    Override(overrides::Override),
    /// Name consumers by their keys, in a file of hashes that a policy reads.
    Consumers(consumers::Consumers),
    /// Show which subjects are denied most and which are nearest to a limit.
    Top(top::Watch),
    /// Show which filters have the rules of the policy, and wait until all have them.
    Rollout(rollout::Rollout),
    /// Let an Envoy finish its requests before it is stopped.
    DrainEnvoy(drain_envoy::DrainEnvoy),
    /// Check the policy, the store, the sidecar and the filters, in this order: what is wrong, what it means and where to read on.
    Check(check::Check),
    /// Validate the filter's configuration and the policy.
    CheckConfig(check_config::CheckConfig),
    /// Check that sidecars can use the policy's store: address, permissions, eviction, round trip and more.
    CheckStore(check_store::CheckStore),
    /// Show which rules match a request, and which limits and keys they check.
    Explain(explain::Explain),
    /// Test a policy: run tables of requests through its rules and limits, in virtual time.
    Test(trial::Test),
    /// Print a policy that does what another rate limiter is configured to do.
    #[command(subcommand)]
    Import(import::Import),
    /// Compare the verdicts of envoyproxy/ratelimit and of rules in shadow, from Envoy's access log.
    Compare(compare::Compare),
    /// Print the JSON Schema of the filter's configuration, or the OpenAPI document of the sidecar.
    Schema(schema::Schema),
    /// Print a shell completion script.
    Completions(completions::Completions),
    /// Print a manual page.
    Man(man::Manual),
}

impl Arguments {
    /// How many threads the command wants besides the one that calls it.
    pub fn threads(&self) -> usize {
        match &self.command {
            Command::Serve(serve) => serve.threads(),
            _ => 1,
        }
    }

    /// Runs the command.
    pub async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            Command::Serve(serve) => serve.run().await,
            Command::Dev(dev) => dev.run().await,
            Command::Render(render) => render.run(),
            Command::Decide(decide) => return decide.run().await,
            Command::Run(run) => return run.run().await,
            Command::Peek(peek) => peek.run().await,
            Command::Settle(settle) => return settle.run().await,
            Command::Reset(reset) => reset.run().await,
            Command::Override(command) => command.run().await,
            Command::Consumers(command) => command.run(),
            Command::Top(top) => top.run().await,
            Command::Rollout(rollout) => rollout.run().await,
            Command::DrainEnvoy(drain) => drain.run().await,
            Command::Check(check) => check.run().await,
            Command::CheckConfig(check) => check.run(),
            Command::CheckStore(check) => check.run().await,
            Command::Explain(explain) => explain.run(),
            Command::Test(test) => test.run(),
            Command::Import(import) => import.run(),
            Command::Compare(compare) => compare.run(),
            Command::Schema(schema) => schema.run(),
            Command::Completions(completions) => completions.run(Self::command()),
            Command::Man(man) => man.run(Self::command()),
        }
        .map(|()| Exit::Success)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;
    use crate::cli::endpoint::{ADMIN_PORT, SIDECAR_PORT};

    #[test]
    fn every_command_has_an_example_that_is_one() {
        let all = Arguments::command();
        all.clone().debug_assert();
        for command in [&all].into_iter().chain(all.get_subcommands()) {
            let name = command.get_name();
            let after = command.get_after_help().map(ToString::to_string);
            let after = after.unwrap_or_else(|| panic!("{name} has no example"));
            let mut lines = after.lines();
            assert_eq!(lines.next(), Some("Example:"), "{name}");
            assert!(after.contains("\n\nMore:\n  docs/"), "{name}");
            let example = lines.next().unwrap().trim();
            assert!(example.starts_with("sluicegate "), "{example}");
            // Through a shell, as its reader's would be; a redirection is the shell's.
            let command = example.split(" > ").next().unwrap();
            let shell = format!("sluicegate() {{ printf '%s\\0' sluicegate \"$@\"; }}; {command}");
            let words = Process::new("sh").args(["-c", &shell]).output().unwrap();
            let words = String::from_utf8(words.stdout).unwrap();
            let words: Vec<_> = words.split_terminator('\0').collect();
            if let Err(error) = Arguments::try_parse_from(&words) {
                panic!("{example}: {error}");
            }
            assert!(name == "sluicegate" || words[1] == name, "{example}");
        }
    }

    #[test]
    fn help_names_the_variable_and_the_default_of_each_port() {
        for (command, argument, port) in [
            ("decide", "sidecar", &SIDECAR_PORT),
            ("top", "admin", &ADMIN_PORT),
        ] {
            let all = Arguments::command();
            let command = all.find_subcommand(command).unwrap();
            let mut arguments = command.get_arguments();
            let argument = arguments.find(|one| one.get_id() == argument).unwrap();
            let help = argument.get_help().unwrap().to_string();
            let (variable, default) = (port.variable, port.default);
            let says = format!("[env: {variable}] [default: http://{default}]");
            assert!(help.ends_with(&says), "{help}");
        }
    }

    #[test]
    fn an_argument_of_the_same_name_has_the_same_values_in_every_command() {
        let all = Arguments::command();
        let mut seen = std::collections::BTreeMap::new();
        for command in all.get_subcommands() {
            for argument in command.get_arguments() {
                let Some(long) = argument.get_long().map(str::to_owned) else {
                    continue;
                };
                // A flag in CI: `rollout --wait --timeout 30s`.
                if (command.get_name(), long.as_str()) == ("rollout", "wait") {
                    continue;
                }
                let value = argument.get_value_names().map(|names| format!("{names:?}"));
                let before = seen.entry(long.clone()).or_insert_with(|| value.clone());
                assert_eq!(*before, value, "--{long} of {}", command.get_name());
            }
        }
    }
}
