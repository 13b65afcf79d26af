//! Path templates: `/v1/videos/{id}`, `/files/*`, `/static/**`.

use crate::path::without_trailing_slash;

/// Matches paths and captures the values of named segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    segments: Vec<Segment>,
    /// Ends with `**`: any number of further segments may follow.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// `{name}`, or `*` without a name.
    Variable(Option<String>),
}

/// The name of a variable and its value.
pub(crate) type Capture<'a> = (&'a str, &'a [u8]);

impl Template {
    /// Parses a template; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("`{text}` does not begin with `/`"));
        };
        let mut segments: Vec<&str> = path.split('/').collect();
        // `/` and `/a/` end with an empty segment, which has no meaning.
        if segments.last() == Some(&"") {
            segments.pop();
        }
        let open = segments.last() == Some(&"**");
        if open {
            segments.pop();
        }
        let mut template = Self {
            segments: Vec::with_capacity(segments.len()),
            open,
        };
        for segment in segments {
            let segment = parse_segment(segment).map_err(|why| format!("`{text}`: {why}"))?;
            if let Segment::Variable(Some(name)) = &segment
                && template.names().any(|earlier| earlier == name)
            {
                return Err(format!("`{text}`: `{{{name}}}` appears twice"));
            }
            template.segments.push(segment);
        }
        Ok(template)
    }

    /// The names of its variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Variable(Some(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether the path matches; if so, adds the variables to `captures`. A trailing slash makes no difference. Empty
    /// segments do: if the upstream merges `//`, the path has another reading without them.
    pub fn matches<'a>(&'a self, path: &'a [u8], captures: &mut Vec<Capture<'a>>) -> bool {
        let path = without_trailing_slash(path);
        let mut given = path.split(|byte| *byte == b'/');
        // Skip what precedes the first slash; nothing follows it in `/`.
        given.next();
        if path == b"/" {
            given.next();
        }
        let before = captures.len();
        let fits = self
            .segments
            .iter()
            .all(|segment| match (segment, given.next()) {
                (Segment::Literal(literal), Some(value)) => literal.as_bytes() == value,
                (_, None | Some(b"")) => false,
                (Segment::Variable(name), Some(value)) => {
                    captures.extend(name.as_deref().map(|name| (name, value)));
                    true
                }
            });
        let fits = fits && (self.open || given.next().is_none());
        if !fits {
            captures.truncate(before);
        }
        fits
    }
}

fn parse_segment(segment: &str) -> Result<Segment, String> {
    if segment == "*" {
        return Ok(Segment::Variable(None));
    }
    if let Some(name) = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(allowed) {
            return Err(format!(
                "`{{{name}}}` is not a name of the characters a-z A-Z 0-9 _ - ."
            ));
        }
        return Ok(Segment::Variable(Some(name.to_owned())));
    }
    if segment.contains(['{', '}', '*']) {
        return Err(format!(
            "`{segment}` is neither a literal nor one `{{name}}` nor `*`; `**` is allowed at the end only"
        ));
    }
    unambiguous(segment)?;
    Ok(Segment::Literal(segment.to_owned()))
}

/// Refuses literals that would never match, because no reading of a path contains them.
pub(crate) fn unambiguous(literal: &str) -> Result<(), String> {
    if literal
        .split('/')
        .any(|segment| matches!(segment, "." | ".."))
    {
        let why = "`.` and `..` are resolved before paths are compared: write the resolved path";
        return Err(why.to_owned());
    }
    if literal.contains("//") {
        return Err("`//` is merged before paths are compared: write `/`".to_owned());
    }
    for (character, remedy) in [
        (
            '?',
            "the query is not part of the path: match it with `query`",
        ),
        ('#', "a fragment is never sent to a server: remove it"),
        (
            '%',
            "escapes are decoded before paths are compared: write the character itself",
        ),
        (
            ';',
            "path parameters are removed before paths are compared: remove them here too",
        ),
        ('\\', "it becomes `/` before paths are compared: write `/`"),
    ] {
        if literal.contains(character) {
            return Err(format!("it contains `{character}`: {remedy}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(template: &str, path: &str) -> Option<String> {
        let template = Template::parse(template).unwrap();
        let mut captures = Vec::new();
        let named =
            |(name, value): &(&str, &[u8])| format!("{name}={}", String::from_utf8_lossy(value));
        let matches = template.matches(path.as_bytes(), &mut captures);
        matches.then(|| captures.iter().map(named).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_template_matches_whole_paths_and_names_segments() {
        for (template, path, expected) in [
            ("/v1/{kind}/{id}", "/v1/videos/7", Some("kind=videos id=7")),
            ("/v1/*", "/v1/a", Some("")),
            ("/v1/{id}", "/v1/a/", Some("id=a")),
            ("/v1/{id}", "/v1", None),
            ("/v1/{id}", "/v1/a/b", None),
            ("/v1/{id}", "/v2/a", None),
            ("/v1/**", "/v1", Some("")),
            ("/v1/**", "/v1/a/b/c", Some("")),
            ("/v1/**", "/v11", None),
            ("/", "/", Some("")),
            ("/**", "/", Some("")),
            ("/v1/{id}", "/v1//", None),
            ("/v1/{id}", "/v1//a", None),
        ] {
            let found = captured(template, path);
            assert_eq!(found.as_deref(), expected, "{template} {path}");
        }
    }

    #[test]
    fn a_broken_template_is_refused_with_what_is_wrong() {
        for (template, why) in [
            ("v1", "begin with `/`"),
            ("/{}", "not a name"),
            ("/{a}/{a}", "twice"),
            ("/a{b}", "neither"),
            ("/**/a", "at the end only"),
            ("/a/../b", "resolved"),
            ("/a?b", "query"),
            ("/a%20b", "escapes"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(why), "{template}: {error}");
        }
    }
}
