//! Prints a policy as YAML.

use serde::{Serialize, Serializer};
use serde_saphyr::{FlowMap, FlowSeq};

use crate::yaml::{Data, Node, value};

/// Longer mappings and lists are not written in one line.
const MAX_FLOW: usize = 100;
/// Nor are the policy's own sections, and what they consist of.
const BLOCKS: usize = 3;

/// A node, at this depth.
pub struct Printed<'a>(pub &'a Node, pub usize);

impl Serialize for Printed<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(node, depth) = *self;
        let is_short = || value(node).to_string().len() <= MAX_FLOW;
        let in_flow = Printed(node, usize::MAX);
        let inner = |node| Printed(node, depth.saturating_add(1));
        match &node.value {
            Data::Scalar(scalar) => scalar.serialize(to),
            Data::List(_) if (BLOCKS..usize::MAX).contains(&depth) && is_short() => {
                FlowSeq(in_flow).serialize(to)
            }
            Data::Fields(_) if (BLOCKS..usize::MAX).contains(&depth) && is_short() => {
                FlowMap(in_flow).serialize(to)
            }
            Data::List(list) => to.collect_seq(list.iter().map(inner)),
            Data::Fields(fields) => {
                to.collect_map(fields.iter().map(|(name, node)| (&name.value, inner(node))))
            }
        }
    }
}
