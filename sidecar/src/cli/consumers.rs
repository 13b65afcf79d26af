//! `sluicegate consumers`: the file that names consumers by the hashes of their keys.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::Subcommand;
use sluicegate::policy::{ConsumersFile, MAX_CONSUMER_KEYS, is_name, read_consumers, start_of};
use sluicegate_rules::Hasher;

use super::Failure;
use super::stdout::{eprint, line, not_written, print, write};

/// More than the value of a header has.
const MAX_KEY_BYTES: u64 = 8_192;

/// Arguments of `consumers`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate consumers add acme --pepper-file pepper.txt < acme.key"
)]
pub struct Consumers {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a key of a consumer: the one on standard input, or a new one, which is printed once.
    #[command(
        after_help = "Example:\n  sluicegate consumers add acme --pepper-file pepper.txt < acme.key"
    )]
    Add(Add),
    /// List the consumers, with the first digits of the hashes of their keys.
    #[command(after_help = "Example:\n  sluicegate consumers list")]
    List {
        #[command(flatten)]
        at: At,
    },
    /// Remove the keys of a consumer, or one of them.
    #[command(after_help = "Example:\n  sluicegate consumers remove acme --hash 0f3a9c21")]
    Remove(Remove),
}

/// Where the consumers are.
#[derive(clap::Args)]
struct At {
    /// The file of consumers.
    #[arg(long, value_name = "FILE", default_value = "consumers.yaml")]
    file: PathBuf,
}

#[derive(clap::Args)]
struct Add {
    /// The consumer's name: its limit's key, and what commands and metrics show.
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// A file with the filters' `pepper`.
    #[arg(long, value_name = "FILE")]
    pepper_file: PathBuf,
    /// Make a new key, also if standard input is no terminal.
    #[arg(long)]
    generate: bool,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct Remove {
    /// The consumer's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Only the key whose hash begins with these digits, which `list` shows.
    #[arg(long, value_name = "DIGITS", default_value = "")]
    hash: String,
    #[command(flatten)]
    at: At,
}

impl Consumers {
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Add(add) => add.run(),
            Command::List { at } => print(&listed(&at.read()?)),
            Command::Remove(remove) => remove.run(),
        }
    }
}

impl At {
    fn read(&self) -> Result<ConsumersFile, Failure> {
        read_consumers(&self.file).map_err(Failure::usage)
    }

    fn write(&self, consumers: &ConsumersFile) -> Result<(), Failure> {
        let written = consumers.write(&self.file);
        written.map_err(|why| Failure::system(format!("{}: {why}", self.file.display())))
    }
}

impl Add {
    fn run(self) -> Result<(), Failure> {
        let hasher = Hasher::new(&pepper(&self.pepper_file)?);
        let pepper = hasher.pepper_digest();
        let file = self.at.file.display();
        let mut all = match self.at.file.try_exists() {
            Ok(false) => ConsumersFile {
                pepper: pepper.clone(),
                consumers: BTreeMap::new(),
            },
            _ => self.at.read()?,
        };
        if all.pepper != pepper {
            return Err(Failure::usage(format!(
                "{file}: its keys were hashed with another pepper: give `--pepper-file` that one, or begin a new `--file` for filters with this one"
            )));
        }
        let (key, is_new) = match self.generate || std::io::stdin().is_terminal() {
            true => (generated()?, true),
            false => (given()?, false),
        };
        let hash = hasher.of_header(key.as_bytes());
        let owner = all.keys().find(|(known, _)| *known == hash);
        if let Some((_, owner)) = owner {
            return match owner == self.name {
                true => {
                    eprint(&format!("{file}: `{owner}` has this key already\n"));
                    Ok(())
                }
                false => Err(Failure::usage(format!(
                    "{file}: `{owner}` has this key, and two consumers cannot share one"
                ))),
            };
        }
        if all.keys().count() >= MAX_CONSUMER_KEYS {
            return Err(Failure::usage(format!(
                "{file}: it has {MAX_CONSUMER_KEYS} keys, the maximum: `sluicegate consumers remove` those that are no longer in use"
            )));
        }
        all.consumers
            .entry(self.name.clone())
            .or_default()
            .push(hash);
        self.at.write(&all)?;
        eprint(&format!("{file}: added a key of `{}`\n", self.name));
        if is_new {
            // It is nowhere else.
            let printed = write(&format!("{key}\n"));
            printed.map_err(|why| Failure::system(not_written(&why)))?;
        }
        Ok(())
    }
}

impl Remove {
    fn run(self) -> Result<(), Failure> {
        let mut all = self.at.read()?;
        let hashes = all.consumers.remove(&self.name).unwrap_or_default();
        let (gone, kept): (Vec<_>, Vec<_>) = hashes
            .into_iter()
            .partition(|hash| hash.starts_with(&self.hash));
        let file = self.at.file.display();
        if gone.is_empty() {
            let name = &self.name;
            return Err(Failure::usage(format!(
                "{file}: there is no such key of `{name}`: `sluicegate consumers list` shows all"
            )));
        }
        if !kept.is_empty() {
            all.consumers.insert(self.name.clone(), kept);
        }
        self.at.write(&all)?;
        let (keys, name) = (gone.len(), &self.name);
        print(&format!("{file}: removed {keys} of the keys of `{name}`\n"))
    }
}

fn listed(all: &ConsumersFile) -> String {
    let mut text = String::new();
    for (name, hashes) in &all.consumers {
        let hashes: Vec<_> = hashes.iter().map(|hash| start_of(hash)).collect();
        line!(text, "{name:<24} {}", hashes.join(" "));
    }
    text
}

fn name(text: &str) -> Result<String, &'static str> {
    let valid = is_name(text).then(|| text.to_owned());
    valid.ok_or("a name consists of 1 to 64 of the characters a-z A-Z 0-9 - _ .")
}

/// The pepper in a file, without the line break at its end.
fn pepper(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|why| Failure::usage(format!("{shown}: {why}")))?;
    let pepper = text.strip_suffix('\n').unwrap_or(&text);
    let pepper = pepper.strip_suffix('\r').unwrap_or(pepper);
    if pepper.is_empty() {
        return Err(Failure::usage(format!(
            "{shown}: it is empty: give the text of the filters' `pepper`"
        )));
    }
    Ok(pepper.to_owned())
}

/// A key that nobody can guess.
fn generated() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Failure::system)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// The key on standard input. Never repeated in a message.
fn given() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin()
        .take(MAX_KEY_BYTES)
        .read_to_string(&mut text);
    let key = text.trim();
    let printable = |c: char| matches!(c, ' '..='~');
    let is_key = !key.is_empty() && key.chars().all(printable);
    match read {
        Ok(bytes) if is_key && (bytes as u64) < MAX_KEY_BYTES => Ok(key.to_owned()),
        _ => Err(Failure::usage(
            "standard input has no key: give one line of printable ASCII, or `--generate` a new one",
        )),
    }
}
