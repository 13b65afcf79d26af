//! Writes a policy as YAML, and notes the line of the file that each line comes from.

use serde_json::Value;

use super::Field;
use crate::policy::fields::duration;
use crate::yaml::{Data, Node, children, entries, fields, line_of};

/// What is written so far.
#[derive(Default)]
pub struct Written {
    pub text: String,
    pub lines: Vec<usize>,
}

/// Longer mappings and lists are not written in one line.
const MAX_FLOW: usize = 100;

impl Written {
    pub fn new(root: &Node) -> Self {
        let mut written = Self::default();
        written.block(root, 0);
        written
    }

    fn line(&mut self, indent: usize, text: &str, at: usize) {
        self.text += &format!("{:indent$}{text}\n", "");
        self.lines.push(at);
    }

    /// The entries of a mapping or list, one below the other.
    fn block(&mut self, node: &Node, indent: usize) {
        for (name, value) in fields(node) {
            let start = format!("{}:", plain(&name.value));
            self.entry(&start, line_of(name, 0), value, indent);
        }
        for value in entries(node) {
            if fields(value).is_empty() || flow(value, line_of(value, 0)).is_some() {
                self.entry("-", line_of(value, 0), value, indent);
                continue;
            }
            let first = self.text.len() + indent;
            self.block(value, indent + 2);
            self.text.replace_range(first..first + 2, "- ");
        }
    }

    fn entry(&mut self, start: &str, at: usize, value: &Node, indent: usize) {
        // Of what begins in another line, mistakes are told there.
        let is_empty = children(value).next().is_none();
        let line = if is_empty { line_of(value, 0) } else { at };
        match flow(value, line) {
            Some(flow) => self.line(indent, &format!("{start} {flow}"), at),
            None => {
                self.line(indent, start, at);
                self.block(value, indent + 2);
            }
        }
    }
}

/// A scalar, or a short list or mapping, if all of it stands in this line of the file.
fn flow(node: &Node, line: usize) -> Option<String> {
    if line_of(node, 0) != line {
        return None;
    }
    let pair =
        |(name, value): &Field| Some(format!("{}: {}", plain(&name.value), flow(value, line)?));
    let joined = |parts: Option<Vec<_>>| Some(parts?.join(", "));
    let text = match &node.value {
        Data::Scalar(Value::String(text)) => return Some(plain(text)),
        Data::Scalar(other) => return Some(other.to_string()),
        Data::List(list) => format!(
            "[{}]",
            joined(list.iter().map(|one| flow(one, line)).collect())?
        ),
        Data::Fields(fields) if fields.is_empty() => "{}".to_owned(),
        Data::Fields(fields) => format!("{{ {} }}", joined(fields.iter().map(pair).collect())?),
    };
    (text.len() <= MAX_FLOW).then_some(text)
}

/// A text without quotes, if it is none of YAML's other kinds of values.
fn plain(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let has_marks = text.contains(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = word.iter().any(|word| text.eq_ignore_ascii_case(word));
    if (begins && !has_marks && !is_word) || duration(text).is_ok() {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}
