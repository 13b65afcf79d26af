//! Turns `upstream_paths` into the steps that the upstream takes to parse a path.

use serde_json::Value;

use super::error::ConfigError;
use super::fields::{Fields, word};
use super::terms::{
    Backslash, DotSegments, DoubleSlash, EncodedSlash, Escapes, Parameters, PathChoices,
    QuerySemicolon, UpstreamName,
};
use crate::path::{DOTS, Step, Upstream};

/// The steps, and what a `;` in the query means. The field is the name of a server, or every choice by itself.
pub(super) fn compile(set: &mut Fields) -> Result<(Upstream, Option<QuerySemicolon>), ConfigError> {
    use UpstreamName::{Go, Nginx, Strict, Tomcat, Wsgi};
    let at = set.at("upstream_paths");
    let mut file = match set.take("upstream_paths") {
        None => return Ok((Upstream::Unknown, None)),
        Some(Value::String(text)) => {
            let index = word(&at, &text, &["strict", "go", "wsgi", "tomcat", "nginx"])?;
            let name = [Strict, Go, Wsgi, Tomcat, Nginx].get(index);
            let choices = name.and_then(|name| choices(*name));
            return Ok(choices.map_or((Upstream::Unknown, None), known));
        }
        Some(value) => Fields::of(at, value)?,
    };
    let choices = PathChoices {
        parameters: choice(
            &mut file,
            "parameters",
            &["keep", "cut", "cut_decoded"],
            &[Parameters::Keep, Parameters::Cut, Parameters::CutDecoded],
        )?,
        escapes: choice(
            &mut file,
            "escapes",
            &["keep", "once", "repeatedly"],
            &[Escapes::Keep, Escapes::Once, Escapes::Repeatedly],
        )?,
        encoded_slash: choice(
            &mut file,
            "encoded_slash",
            &["separator", "literal"],
            &[EncodedSlash::Separator, EncodedSlash::Literal],
        )?,
        backslash: choice(
            &mut file,
            "backslash",
            &["literal", "separator", "raw_separator"],
            &[
                Backslash::Literal,
                Backslash::Separator,
                Backslash::RawSeparator,
            ],
        )?,
        double_slash: choice(
            &mut file,
            "double_slash",
            &["keep", "merge"],
            &[DoubleSlash::Keep, DoubleSlash::Merge],
        )?,
        dot_segments: choice(
            &mut file,
            "dot_segments",
            &["keep", "resolve_encoded", "resolve"],
            &[
                DotSegments::Keep,
                DotSegments::ResolveEncoded,
                DotSegments::Resolve,
            ],
        )?,
        query_semicolon: choice(
            &mut file,
            "query_semicolon",
            &["literal", "separator", "drop"],
            &[
                QuerySemicolon::Literal,
                QuerySemicolon::Separator,
                QuerySemicolon::Drop,
            ],
        )?,
    };
    file.end()?;
    Ok(known(choices))
}

/// The value for the word that a field is.
fn choice<T: Copy>(
    file: &mut Fields,
    name: &str,
    words: &[&str],
    values: &[T],
) -> Result<T, ConfigError> {
    let index = file.word(name, words)?;
    file.needs(name, index.and_then(|index| values.get(index).copied()))
}

/// The choices that a name stands for. `filter/rules/tests/upstreams` compares each with a model of the server.
const fn choices(name: UpstreamName) -> Option<PathChoices> {
    let decoded = PathChoices {
        parameters: Parameters::Keep,
        escapes: Escapes::Once,
        encoded_slash: EncodedSlash::Separator,
        backslash: Backslash::Literal,
        double_slash: DoubleSlash::Keep,
        dot_segments: DotSegments::Keep,
        query_semicolon: QuerySemicolon::Literal,
    };
    Some(match name {
        UpstreamName::Strict => return None,
        UpstreamName::Go => PathChoices {
            query_semicolon: QuerySemicolon::Drop,
            ..decoded
        },
        UpstreamName::Wsgi => decoded,
        UpstreamName::Tomcat => PathChoices {
            parameters: Parameters::Cut,
            double_slash: DoubleSlash::Merge,
            dot_segments: DotSegments::Resolve,
            ..decoded
        },
        UpstreamName::Nginx => PathChoices {
            double_slash: DoubleSlash::Merge,
            dot_segments: DotSegments::Resolve,
            ..decoded
        },
    })
}

fn known(choices: PathChoices) -> (Upstream, Option<QuerySemicolon>) {
    let steps = [
        (
            choices.backslash == Backslash::RawSeparator,
            Step::Backslashes,
        ),
        (choices.parameters == Parameters::Cut, Step::Parameters),
        (
            choices.dot_segments == DotSegments::ResolveEncoded,
            Step::Dots { escaped: true },
        ),
        (
            choices.escapes != Escapes::Keep,
            Step::Decode(choices.escapes, choices.encoded_slash),
        ),
        (choices.backslash == Backslash::Separator, Step::Backslashes),
        (
            choices.parameters == Parameters::CutDecoded,
            Step::Parameters,
        ),
        (choices.double_slash == DoubleSlash::Merge, Step::Merge),
        (choices.dot_segments == DotSegments::Resolve, DOTS),
    ];
    let taken = steps.into_iter().filter(|(taken, _)| *taken);
    let taken = taken.map(|(_, step)| step).collect();
    (Upstream::Known(taken), Some(choices.query_semicolon))
}
