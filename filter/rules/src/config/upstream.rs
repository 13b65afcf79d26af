//! Turns `upstream_paths` into the steps that the upstream takes to parse a path.

use super::schema::{
    Backslash, DotSegments, DoubleSlash, EncodedSlash, Escapes, Parameters, PathChoices,
    QuerySemicolon, UpstreamName, UpstreamPaths,
};
use crate::path::{DOTS, Step, Upstream};

/// The steps, and what a `;` in the query means.
pub(super) fn validate(file: &UpstreamPaths) -> (Upstream, Option<QuerySemicolon>) {
    match file {
        UpstreamPaths::Choices(choices) => known(*choices),
        UpstreamPaths::Name(name) => choices(*name).map_or((Upstream::Unknown, None), known),
    }
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
