//! Writes a policy as YAML, and notes the line of the file that each line comes from.

use serde_json::Value;

use crate::yaml::{Data, Node, children, line_of};

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
        written.block(root, 0, false);
        written
    }

    fn line(&mut self, indent: usize, text: &str, at: usize) {
        self.text += &format!("{:indent$}{text}\n", "");
        self.lines.push(at);
    }

    /// The entries of a mapping or list, one below the other; `is_entry`: the first follows the `- ` of a list.
    fn block(&mut self, node: &Node, indent: usize, is_entry: bool) {
        match &node.value {
            Data::Fields(fields) => {
                for (index, (name, value)) in fields.iter().enumerate() {
                    let dash = if is_entry && index == 0 { "- " } else { "" };
                    let start = format!("{dash}{}:", plain(&name.value));
                    self.entry(
                        &start,
                        line_of(name, 0),
                        value,
                        indent - dash.len(),
                        indent + 2,
                    );
                }
            }
            Data::List(list) => {
                for value in list {
                    let is_flat = flow(value).is_some();
                    match (&value.value, is_flat) {
                        (Data::Fields(_), false) => self.block(value, indent + 2, true),
                        _ => self.entry("-", line_of(value, 0), value, indent, indent + 2),
                    }
                }
            }
            Data::Scalar(_) => {}
        }
    }

    fn entry(&mut self, start: &str, at: usize, value: &Node, indent: usize, inner: usize) {
        // Of what begins in another line, mistakes are told there.
        let is_here = matches!(value.value, Data::Scalar(_)) || line_of(value, 0) == at;
        match flow(value).filter(|_| is_here || children(value).next().is_none()) {
            Some(flow) => self.line(indent, &format!("{start} {flow}"), at),
            None => {
                self.line(indent, start, at);
                self.block(value, inner, false);
            }
        }
    }
}

/// A scalar, or a short list or mapping that stands in one line of the file.
fn flow(node: &Node) -> Option<String> {
    let in_line = |inner: &Node| line_of(inner, 0) == line_of(node, 0);
    if !children(node).all(in_line) {
        return None;
    }
    let joined = |parts: Vec<String>| parts.join(", ");
    let text = match &node.value {
        Data::Scalar(Value::String(text)) => return Some(plain(text)),
        Data::Scalar(other) => return Some(other.to_string()),
        Data::List(list) => format!(
            "[{}]",
            joined(list.iter().map(flow).collect::<Option<_>>()?)
        ),
        Data::Fields(fields) if fields.is_empty() => "{}".to_owned(),
        Data::Fields(fields) => {
            let pair = |(name, value): &(serde_saphyr::Spanned<String>, Node)| {
                Some(format!("{}: {}", plain(&name.value), flow(value)?))
            };
            format!(
                "{{ {} }}",
                joined(fields.iter().map(pair).collect::<Option<_>>()?)
            )
        }
    };
    (text.len() <= MAX_FLOW).then_some(text)
}

/// A text without quotes, if it is none of YAML's other kinds of values.
fn plain(text: &str) -> String {
    let mut bytes = text.bytes();
    let begins = bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'/');
    let rest = bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = word.iter().any(|word| text.eq_ignore_ascii_case(word));
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_duration =
        digits.len() < text.len() && ["ms", "s", "m", "h", "d", "w"].contains(&digits);
    if (begins && rest && !is_word) || is_duration {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}
