//! `sluicegate consumers`: the file that names consumers by the hashes of their keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::Subcommand;
use rustix::fs::{FlockOperation, flock};
use sluicegate::policy::{ConsumersFile, MAX_CONSUMER_KEYS, is_name, read_consumers, start_of};
use sluicegate_rules::Hasher;

use super::Failure;
use super::pepper;
use super::stdout::{eprint, line, not_written, print, write};

/// More than the value of a header has.
const MAX_KEY_BYTES: u64 = 8_192;

/// Arguments of `consumers`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate consumers add acme --tier gold --pepper-file pepper.txt\n\nMore:\n  docs/consumers.md"
)]
pub struct Consumers {
    #[command(subcommand)]
    command: Command,
    /// The file of consumers.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "consumers.yaml",
        global = true
    )]
    file: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Add a key of a consumer: that on standard input, or if there is none a new one, which is printed once.
    Add {
        /// The consumer's name, as commands show it.
        #[arg(value_name = "NAME", value_parser = name)]
        name: String,
        /// A file with the filters' `pepper`.
        #[arg(long, value_name = "FILE")]
        pepper_file: PathBuf,
        /// The consumer's tier: the limit of this name below `tiers` counts it, in a policy with `by: consumer`. It leaves another one.
        #[arg(long, value_name = "TIER", value_parser = name)]
        tier: Option<String>,
    },
    /// List the consumers, with the first digits of the hashes of their keys.
    List,
    /// Remove the keys of a consumer, or one of them.
    Remove {
        /// The consumer's name.
        #[arg(value_name = "NAME")]
        name: String,
        /// Only keys whose hashes begin with these digits, which `list` shows.
        #[arg(long, value_name = "DIGITS", value_parser = digits)]
        hash: Option<String>,
    },
}

impl Consumers {
    pub fn run(self) -> Result<(), Failure> {
        match &self.command {
            Command::Add {
                name,
                pepper_file,
                tier,
            } => self.add(name, pepper_file, tier.as_deref()),
            Command::List => print(&listed(&self.read()?)),
            Command::Remove { name, hash } => {
                self.remove(name, hash.as_deref().unwrap_or_default())
            }
        }
    }

    fn read(&self) -> Result<ConsumersFile, Failure> {
        read_consumers(&self.file).map_err(Failure::usage)
    }

    /// Keeps others from changing the file until this is dropped. The lock is on a file that only its owner can open: any
    /// process that can open a folder or file can lock it, and keep all others waiting.
    fn locked(&self) -> Result<File, Failure> {
        let path = self.file.with_extension("lock");
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path);
        let file =
            file.map_err(|why| Failure::system(format!("cannot lock {}: {why}", path.display())))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::system("another `sluicegate consumers` is changing this file: try again")
        })?;
        Ok(file)
    }

    fn write(&self, consumers: &ConsumersFile) -> Result<(), Failure> {
        let written = consumers.write(&self.file);
        written.map_err(|why| Failure::system(format!("{}: {why}", self.file.display())))
    }

    fn refuse(&self, why: impl std::fmt::Display) -> Result<(), Failure> {
        Err(Failure::usage(format!("{}: {why}", self.file.display())))
    }

    fn add(&self, name: &str, pepper_file: &Path, tier: Option<&str>) -> Result<(), Failure> {
        let _locked = self.locked()?;
        let hasher = Hasher::new(&pepper::read(pepper_file)?);
        let digest = hasher.pepper_digest();
        let mut all = match self.file.try_exists() {
            Ok(false) => ConsumersFile {
                pepper: digest.clone(),
                consumers: BTreeMap::new(),
                tiers: BTreeMap::new(),
            },
            _ => self.read()?,
        };
        if all.pepper != digest {
            return self.refuse(
                "its keys were hashed with another pepper: give that one, or begin a new `--file`",
            );
        }
        let given = given()?;
        let key = given.clone().map_or_else(generated, Ok)?;
        let hash = hasher.of_header(key.as_bytes());
        if let Some((_, owner)) = all.keys().find(|(known, _)| *known == hash) {
            return self.refuse(format_args!(
                "`{owner}` has this key already; to give it another tier, move its name in the file's `tiers`"
            ));
        }
        if all.keys().count() >= MAX_CONSUMER_KEYS {
            return self.refuse(format_args!(
                "it has {MAX_CONSUMER_KEYS} keys, the maximum: remove those that are no longer in use"
            ));
        }
        all.consumers.entry(name.to_owned()).or_default().push(hash);
        if let Some(tier) = tier {
            all.put_into(tier, name);
        }
        self.write(&all)?;
        if given.is_none() {
            // It is nowhere else.
            let printed = write(&format!("{key}\n"));
            printed.map_err(|why| Failure::system(not_written(&why)))?;
        }
        eprint(&format!("added a key of `{name}`\n"));
        Ok(())
    }

    fn remove(&self, name: &str, start: &str) -> Result<(), Failure> {
        let _locked = self.locked()?;
        let mut all = self.read()?;
        let before = all.keys().count();
        if let Some(hashes) = all.consumers.get_mut(name) {
            hashes.retain(|hash| !hash.starts_with(start));
        }
        all.forget_without_keys();
        let removed = before - all.keys().count();
        if removed == 0 {
            return self.refuse("there is no such key: `sluicegate consumers list` shows all");
        }
        self.write(&all)?;
        print(&format!(
            "removed {removed} of the keys of `{name}`; they stay valid where a sidecar refuses its policy: see its /readyz\n"
        ))
    }
}

fn listed(all: &ConsumersFile) -> String {
    let mut text = String::new();
    for (name, hashes) in &all.consumers {
        let hashes: Vec<_> = hashes.iter().map(|hash| start_of(hash)).collect();
        let mut tiers = all.tiers.iter().filter(|(_, names)| names.contains(name));
        let tier = tiers
            .next()
            .map_or_else(String::new, |(tier, _)| format!(" tier {tier}"));
        line!(text, "{name:<24} {}{tier}", hashes.join(" "));
    }
    text
}

fn name(text: &str) -> Result<String, &'static str> {
    let valid = is_name(text).then(|| text.to_owned());
    valid.ok_or("a name consists of 1 to 64 of the characters a-z A-Z 0-9 - _ .")
}

fn digits(text: &str) -> Result<String, &'static str> {
    let valid = text.len() >= 8 && text.chars().all(|c| c.is_ascii_hexdigit());
    let text = valid.then(|| text.to_lowercase());
    text.ok_or("give at least the 8 digits that `sluicegate consumers list` shows")
}

/// A key that nobody can guess.
fn generated() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Failure::system)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// The key on standard input, if there is one. No message repeats it.
fn given() -> Result<Option<String>, Failure> {
    let (mut text, stdin) = (String::new(), std::io::stdin());
    if stdin.is_terminal() {
        return Ok(None);
    }
    let read = stdin.take(MAX_KEY_BYTES).read_to_string(&mut text);
    let key = text.trim();
    let printable = key.chars().all(|c| matches!(c, ' '..='~'));
    match read {
        Ok(bytes) if printable && (bytes as u64) < MAX_KEY_BYTES => {
            Ok((!key.is_empty()).then(|| key.to_owned()))
        }
        _ => Err(Failure::usage(
            "standard input: this is not a key: give one line of printable ASCII",
        )),
    }
}
