//! The rules that a sidecar pushes: a document of lines, each a JSON object that is read and compiled by itself, because a
//! worker of Envoy must not stand still for as long as all of them take.
//!
//! ```text
//! {"format":1,"digest":"a41c09d2e7f3","instance":4711,"lines":4}
//! {"set":"gateway","reply":{..},"upstream_paths":"go","windows":{"per-key":[[5,2000],[100,60000]]}}
//! {"regex":"/v[0-9]+/.*"}
//! {"rule":{..}}
//! ```
//!
//! The head names the digest of all sets of the policy, and how many lines follow it: none if the filter has that digest
//! already. Each set begins with a line of its own; its regular expressions come before its rules, which then only look them
//! up.

use std::rc::Rc;

use regex_lite::Regex;
use serde_json::Value;
use sluicegate_protocol::{DIGEST_DIGITS, is_digits};

use super::error::{ConfigError, invalid};
use super::fields::Fields;
use super::rule_set::Builder;
#[cfg(feature = "schema")]
use super::schema;
use super::{expressions, strict};
use crate::rule::RuleSet;

/// The newest format that this version reads. A field or value of rules that earlier filters do not know gets the next number,
/// and documents whose rules have it: all others stay readable for these filters.
pub const FORMAT: u64 = 2;
/// Of sets without a limit of slots, whose `windows` have a third number.
pub const FORMAT_WITHOUT_SLOTS: u64 = 1;
/// Most bytes of a document.
pub const MAX_BYTES: usize = 256 * 1024;
/// Most bytes of a line: reading one must not take long.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Most regular expressions of a document. Each can take 80 KB of memory.
pub const MAX_EXPRESSIONS: usize = 1_024;
/// Longest of them. Compiling one takes at most 0.8 ms then; with 16 KiB it takes 1.8 ms before it is found to be too large.
pub const MAX_EXPRESSION_BYTES: usize = 4_096;

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The lowest that the rules need: a filter refuses those that are newer than its own.
    pub format: u64,
    /// Identifies the rules of the policy in force: twelve hexadecimal digits.
    pub digest: String,
    /// The sidecar process that sent it.
    pub instance: u64,
    /// Earlier digests whose limits that process decides, as in answers to questions.
    pub earlier: String,
    /// The limits in force there, as in answers to questions. Earlier sidecars tell none.
    pub limits: Option<String>,
    /// Whose cached denials end that the filter has: names of limits, and `NAME#DIGITS` for a consumer's key; `None`: all.
    pub ended: Option<Vec<String>>,
    /// How many lines follow.
    pub lines: usize,
}

impl Head {
    fn read(line: &Value) -> Option<Self> {
        let number = |field| line.get(field)?.as_u64();
        let digest = line.get("digest")?.as_str()?;
        let valid = is_digits(digest, DIGEST_DIGITS);
        let text = |field| Some(line.get(field)?.as_str()?.to_owned());
        let names = |list: &Vec<Value>| {
            list.iter()
                .map(|name| Some(name.as_str()?.to_owned()))
                .collect()
        };
        Some(Self {
            format: number("format")?,
            digest: valid.then(|| digest.to_owned())?,
            instance: number("instance")?,
            earlier: text("earlier").unwrap_or_default(),
            limits: text("limits"),
            ended: line.get("ended").and_then(Value::as_array).and_then(names),
            lines: usize::try_from(number("lines")?).ok()?,
        })
    }
}

/// A document, compiled line by line.
#[derive(Debug)]
pub struct Document {
    /// Its first line.
    pub head: Head,
    bytes: Vec<u8>,
    read: usize,
    lines: usize,
    /// Sets that are complete, with their names.
    sets: Vec<(String, RuleSet)>,
    open: Option<Box<(String, Builder)>>,
    /// Until the rules that need them are read.
    expressions: Vec<Rc<Regex>>,
}

impl Document {
    /// Reads the first line.
    ///
    /// # Errors
    /// It is no such document.
    pub fn new(bytes: Vec<u8>) -> Result<Self, ConfigError> {
        let mut document = Self {
            head: Head::default(),
            bytes,
            read: 0,
            lines: 0,
            sets: Vec::new(),
            open: None,
            expressions: Vec::new(),
        };
        let head = document.next_line()?.as_ref().and_then(Head::read);
        let Some(head) = head else {
            return invalid("rules", "the first line is not the head of a document");
        };
        document.head = head;
        document.lines = 0;
        Ok(document)
    }

    /// Checks what the head says, before anything is compiled.
    ///
    /// # Errors
    /// This version of the filter cannot use the document.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Head { format, .. } = self.head;
        if format > FORMAT {
            let why = format_args!("{format} is newer than {FORMAT}: upgrade the filter");
            return invalid("format", why);
        }
        if self.bytes.len() > MAX_BYTES {
            let why = format_args!("{} bytes are more than {MAX_BYTES}", self.bytes.len());
            return invalid("rules", why);
        }
        Ok(())
    }

    /// Compiles the next line. `false`: there is none.
    ///
    /// # Errors
    /// The line is wrong, or lines are missing.
    pub fn compile_line(&mut self) -> Result<bool, ConfigError> {
        let Some(mut line) = self.next_line()? else {
            if self.lines != self.head.lines {
                let why = format_args!("{} of {} lines arrived", self.lines, self.head.lines);
                return invalid("rules", why);
            }
            self.close();
            return Ok(false);
        };
        if let Some(text) = line.get("regex").and_then(Value::as_str) {
            if self.expressions.len() == MAX_EXPRESSIONS {
                let why = format_args!("there are more than {MAX_EXPRESSIONS}");
                return invalid("regex", why);
            }
            self.expressions.push(compile_expression("regex", text)?);
        } else if let Some(rule) = line.get_mut("rule").map(Value::take) {
            let Some((set, builder)) = self.open.as_deref_mut() else {
                return invalid("rule", "comes before any set");
            };
            let at = format!("rules.{set}.rules[{}]", builder.rules.len());
            builder.add(Fields::of(at, rule)?)?;
        } else {
            let neither = "a line is neither `set`, `regex` nor `rule`";
            let Ok(mut line) = Fields::of(String::new(), line) else {
                return invalid("set", neither);
            };
            let Some(set) = line.text("set")? else {
                return invalid("set", neither);
            };
            self.close();
            if self.sets.iter().any(|(name, _)| *name == set) {
                return invalid("set", format_args!("`{set}` is there already"));
            }
            self.open = Some(Box::new((set, Builder::new(&mut line)?)));
            line.end()?;
        }
        Ok(true)
    }

    /// The sets of a document of which all lines are compiled, one for each of these names.
    ///
    /// # Errors
    /// The document has no set with one of the names.
    pub fn finish(mut self, names: &[String]) -> Result<Vec<Rc<RuleSet>>, ConfigError> {
        let mut sets = Vec::with_capacity(names.len());
        for name in names {
            match self.sets.iter().position(|(known, _)| known == name) {
                Some(index) => sets.push(Rc::new(self.sets.swap_remove(index).1)),
                None => {
                    let why = format_args!("the policy has no rule set `{name}`");
                    return invalid("rule_sets", why);
                }
            }
        }
        Ok(sets)
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let (name, builder) = *open;
            self.sets.push((name, builder.finish()));
        }
    }

    fn next_line(&mut self) -> Result<Option<Value>, ConfigError> {
        let rest = self.bytes.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        self.lines += 1;
        let within = rest.iter().take(MAX_LINE_BYTES);
        let Some(end) = within.clone().position(|byte| *byte == b'\n') else {
            let why = format_args!(
                "line {} has no end within {MAX_LINE_BYTES} bytes",
                self.lines
            );
            return invalid("rules", why);
        };
        self.read += end + 1;
        let line = strict::read(rest.get(..end).unwrap_or_default());
        line.map(Some)
            .or_else(|why| invalid("rules", format_args!("line {}: {why}", self.lines)))
    }
}

fn compile_expression(at: &str, text: &str) -> Result<Rc<Regex>, ConfigError> {
    let size = text.len();
    if size > MAX_EXPRESSION_BYTES {
        let why = format_args!(
            "an expression has {size} bytes: at most {MAX_EXPRESSION_BYTES} are possible"
        );
        return invalid(at, why);
    }
    let regex = expressions::whole(text);
    regex.or_else(|why| invalid(at, format_args!("`{text}`: {why}")))
}

/// Compiles a rule set that was read, for the sidecar, as a filter does it: also returns its regular expressions.
///
/// # Errors
/// Everything that is wrong, with field, value and remedy.
#[cfg(feature = "schema")]
pub fn validate(
    file: &schema::RuleSetFile,
    set: &Value,
) -> Result<(RuleSet, Vec<String>), Vec<ConfigError>> {
    let one = |error| vec![error];
    let mut fields = Fields::of(String::new(), set.clone()).map_err(one)?;
    let mut builder = Builder::new(&mut fields).map_err(one)?;
    let rules = fields.objects("rules").map_err(one)?;
    let (mut texts, mut mistakes) = (Vec::new(), Vec::new());
    for (rule, fields) in file.rules.iter().zip(rules) {
        // Until the rule has looked them up.
        let (mut compiled, mut wrong) = (Vec::new(), None);
        let at = fields.at("match");
        rule.matcher.expressions(&at, &mut |at, text| {
            texts.push(text.to_owned());
            match compile_expression(&at, text) {
                Ok(regex) => compiled.push(regex),
                Err(error) => wrong = wrong.take().or(Some(error)),
            }
        });
        let added = wrong.map_or_else(|| builder.add(fields), Err);
        mistakes.extend(added.err());
    }
    if mistakes.is_empty() {
        Ok((builder.finish(), texts))
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
