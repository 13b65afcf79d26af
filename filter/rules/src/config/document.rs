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
use super::{Builder, expressions, from_value, schema, strict};
use crate::rule::RuleSet;

/// The version of this format.
pub const FORMAT: u64 = 1;
/// Most bytes of a document.
pub const MAX_BYTES: usize = 256 * 1024;
/// Most bytes of a line: reading one must not take long.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Most regular expressions of a document. Each can take 80 KB of memory.
pub const MAX_EXPRESSIONS: usize = 1_024;
/// Longest of them. Compiling one takes at most 0.8 ms then; with 16 KiB it takes 1.8 ms before it is found to be too large.
pub const MAX_EXPRESSION_BYTES: usize = 4_096;
/// Most limits that the checks of a rule can select: texts are made for each, and 900 take 4 ms.
const MAX_LIMITS: usize = 256;

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Should be [`FORMAT`].
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
        if format != FORMAT {
            let why = format_args!("{format} is another format than {FORMAT}: upgrade the filter");
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
            self.close()?;
            return Ok(false);
        };
        if let Some(text) = line.get("regex").and_then(Value::as_str) {
            if self.expressions.len() == MAX_EXPRESSIONS {
                let why = format_args!("there are more than {MAX_EXPRESSIONS}");
                return invalid("regex", why);
            }
            bounded_expression("regex", text)?;
            let regex = expressions::whole(text);
            let regex = regex.or_else(|why| invalid("regex", format_args!("`{text}`: {why}")))?;
            self.expressions.push(regex);
        } else if let Some(rule) = line.get_mut("rule").map(Value::take) {
            let Some((set, builder)) = self.open.as_deref_mut() else {
                return invalid("rule", "comes before any set");
            };
            let at = format!("rules.{set}.rules[{}]", builder.rules.len());
            let rule: schema::Rule = from_value(&rule)?;
            bounded(&at, &rule)?;
            // One line must not compile several.
            let mut unknown = None;
            rule.matcher.expressions(&mut |text| {
                unknown = unknown.or(expressions::known(text).is_none().then_some(text))
            });
            if let Some(text) = unknown {
                return invalid(
                    &at,
                    format_args!("no line before it has the expression `{text}`"),
                );
            }
            builder.add(&at, &rule)?;
        } else {
            let mut field = |name| line.get_mut(name).map(Value::take).unwrap_or_default();
            let Value::String(set) = field("set") else {
                return invalid("set", "a line is neither `set`, `regex` nor `rule`");
            };
            self.close()?;
            if self.sets.iter().any(|(name, _)| *name == set) {
                return invalid("set", format_args!("`{set}` is there already"));
            }
            let upstream_paths: Option<_> = from_value(&field("upstream_paths"))?;
            let reply = from_value(&field("reply"))?;
            let windows = field("windows");
            let builder = Builder::new(&reply, &upstream_paths.unwrap_or_default(), windows)?;
            self.open = Some(Box::new((set, builder)));
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

    fn close(&mut self) -> Result<(), ConfigError> {
        if let Some(open) = self.open.take() {
            let (name, builder) = *open;
            self.sets.push((name, builder.finish()?));
        }
        Ok(())
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

/// Refuses a rule for which a filter takes too long in one call.
fn bounded(at: &str, rule: &schema::Rule) -> Result<(), ConfigError> {
    let limits = rule.checks.iter().map(|check| match &check.limit {
        schema::Limit::Name(_) => 1,
        schema::Limit::Tiers(tiers) => tiers.map.len(),
    });
    let limits: usize = limits.sum();
    if limits > MAX_LIMITS {
        let why = format_args!("select {limits} limits: at most {MAX_LIMITS} are possible");
        return invalid(&format!("{at}.checks"), why);
    }
    let (mut checked, at) = (Ok(()), format!("{at}.match"));
    rule.matcher.expressions(&mut |text| {
        if checked.is_ok() {
            checked = bounded_expression(&at, text);
        }
    });
    checked
}

fn bounded_expression(at: &str, text: &str) -> Result<(), ConfigError> {
    if text.len() > MAX_EXPRESSION_BYTES {
        let why = format_args!(
            "an expression has {} bytes: at most {MAX_EXPRESSION_BYTES} are possible",
            text.len()
        );
        return invalid(at, why);
    }
    Ok(())
}

/// Validates a rule set, for the sidecar: then a filter can compile it too. Also returns its regular expressions.
///
/// # Errors
/// Everything that is wrong, with field, value and remedy.
#[cfg(feature = "schema")]
pub fn validate(file: &schema::RuleSetFile) -> Result<(RuleSet, Vec<String>), Vec<ConfigError>> {
    let one = |error| vec![error];
    let builder = Builder::new(&file.reply, &file.upstream_paths, Default::default());
    let mut builder = builder.map_err(one)?;
    let mistakes = builder.add_all(&file.rules, bounded);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut expressions = Vec::new();
    for rule in &file.rules {
        (rule.matcher).expressions(&mut |text| expressions.push(text.to_owned()));
    }
    Ok((builder.finish().map_err(one)?, expressions))
}

#[cfg(test)]
mod tests;
