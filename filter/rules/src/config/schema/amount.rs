//! Costs that are known after the response: what is reserved, and how it is settled.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Number;

use super::{Metadata, TrustedSource};

/// A number of units, or where it is told.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Amount {
    /// A fixed number, not negative.
    Number(Number),
    /// Where it is told.
    Told(Box<AmountSource>),
}

impl Amount {
    /// Adds the headers that it reads, each with its path.
    pub(super) fn headers<'a>(&'a self, at: &str, found: &mut Vec<(String, &'a String)>) {
        let Self::Told(told) = self else {
            return;
        };
        let header = told.header.as_ref();
        found.extend(header.map(|name| (format!("{at}.header"), name)));
        for (name, list) in [("largest", &told.largest), ("sum", &told.sum)] {
            for (index, amount) in list.iter().flatten().enumerate() {
                amount.headers(&format!("{at}.{name}[{index}]"), found);
            }
        }
    }
}

/// Where a number is told: exactly one source, and what is made of it. In `reserve` the request tells it, in `settle` the response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    { "required": ["header"] }, { "required": ["metadata"] }, { "required": ["bytes"] }, { "required": ["milliseconds"] },
    { "required": ["status"] }, { "required": ["grpc_status"] }, { "required": ["largest"] }, { "required": ["sum"] },
]))]
#[serde(default, deny_unknown_fields)]
pub struct AmountSource {
    /// Name of a header with the number: of the request in `reserve`, of the response in `settle`.
    pub header: Option<String>,
    /// Must be `true` with `header`, to confirm that whoever sets it may choose what requests cost.
    pub trusted: bool,
    /// A number in the dynamic metadata that another filter has written: of the body, for example. In `settle`, one that was there
    /// before the response and has not changed is no usage.
    pub metadata: Option<Metadata>,
    /// `true`: the size of the request's body by its `content-length`; in `settle`, that of the response's body as far as it was
    /// sent.
    pub bytes: Option<bool>,
    /// `true`: how long the request took. In `settle` only.
    pub milliseconds: Option<bool>,
    /// Units for the response's status: `404`, `4xx` or `default`. In `settle` only.
    pub status: Option<BTreeMap<String, Number>>,
    /// Units for its gRPC status: `0` to `16`, or `default`. In `settle` only.
    pub grpc_status: Option<BTreeMap<String, Number>>,
    /// The largest of several, without those that are absent.
    pub largest: Option<Vec<Amount>>,
    /// The sum of several. If one of them is absent and has no `default`, so is the sum.
    pub sum: Option<Vec<Amount>>,
    /// Multiplies the number: by a number, which may be negative, or by one from a table.
    pub weight: Option<Weight>,
    /// Most of it, before its weight. In `reserve`, what is no number counts as this much.
    pub max: Option<Number>,
    /// In place of a number that is absent; for all of `reserve` 1, unless it is given.
    pub default: Option<Number>,
}

/// What a number is multiplied by.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Weight {
    /// The same for all.
    Number(Number),
    /// By a name.
    ByName(Box<NameWeight>),
}

/// Weights by a name, such as that of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NameWeight {
    /// Where the name is.
    pub by: TrustedSource,
    /// The weight of each name, and `default` for all others.
    #[schemars(extend("required" = ["default"]))]
    pub table: BTreeMap<String, Number>,
}

/// How a check is settled when the response has ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settle {
    /// What tells how many units were used. A sum below 0 counts as 0, and is rounded up.
    pub from: Amount,
    /// Most units that a request can have used. A larger number counts as this one.
    #[schemars(range(min = 1, max = 2_147_483_648_u64))]
    pub max: Option<u64>,
    /// What a request costs if the response has ended well and tells no usage: `keep` what was reserved (the default), `return` it, or
    /// a number of units. A request that has not reached the upstream costs nothing.
    pub unknown: Option<Otherwise>,
    /// What it costs if the upstream failed: a status of 500 and above, 429, or no response.
    pub failed: Option<Otherwise>,
    /// What it costs if the stream ended before a byte of the response's body was sent.
    pub cut_before_first_byte: Option<Otherwise>,
    /// What it costs if the stream ended in the middle of the response.
    pub cut: Option<Otherwise>,
    /// How long after the last sign of its stream a request can be settled, `10s` to `1d`, by default `10m`. Streams that live give
    /// such signs.
    pub within: Option<String>,
}

/// What a request without usage costs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Otherwise {
    /// `keep` or `return`.
    Word(#[schemars(regex(pattern = "^(keep|return)$"))] String),
    /// So many units.
    Units(u64),
}
