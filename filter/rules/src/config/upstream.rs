//! Turns `upstream_paths` into the steps that the upstream takes to parse a path.

use super::schema::{
    Backslash, DotSegments, DoubleSlash, EncodedSlash, Escapes, Parameters, PathChoices,
    QuerySemicolon, UpstreamName, UpstreamPaths,
};
use crate::path::{DOTS, Step, Upstream};
use crate::query::Semicolon;

/// The steps, and what a `;` in the query means.
pub(super) fn validate(file: &UpstreamPaths) -> (Upstream, Option<Semicolon>) {
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

fn known(choices: PathChoices) -> (Upstream, Option<Semicolon>) {
    let mut steps = Vec::new();
    if choices.backslash == Backslash::RawSeparator {
        steps.push(Step::Backslashes);
    }
    if choices.parameters == Parameters::Cut {
        steps.push(Step::Parameters);
    }
    if choices.dot_segments == DotSegments::ResolveEncoded {
        steps.push(Step::Dots { escaped: true });
    }
    if choices.escapes != Escapes::Keep {
        steps.push(Step::Decode {
            repeatedly: choices.escapes == Escapes::Repeatedly,
            slashes: choices.encoded_slash == EncodedSlash::Separator,
        });
    }
    if choices.backslash == Backslash::Separator {
        steps.push(Step::Backslashes);
    }
    if choices.parameters == Parameters::CutDecoded {
        steps.push(Step::Parameters);
    }
    if choices.double_slash == DoubleSlash::Merge {
        steps.push(Step::Merge);
    }
    if choices.dot_segments == DotSegments::Resolve {
        steps.push(DOTS);
    }
    let semicolon = match choices.query_semicolon {
        QuerySemicolon::Literal => Semicolon::Literal,
        QuerySemicolon::Separator => Semicolon::Separator,
        QuerySemicolon::Drop => Semicolon::Drop,
    };
    (Upstream::Known(steps), Some(semicolon))
}
