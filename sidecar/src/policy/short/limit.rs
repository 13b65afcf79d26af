//! An entry of `limits`: the limits of the long form, and the rule that asks for them.

use serde_saphyr::Spanned;

use super::{Read, cost, fields_at, key, list_at, matching, mistake, rate, value_at, wrong};
use crate::mask::shown;
use crate::policy::consumers_file;
use crate::policy::fields::is_name;
use crate::policy::files::Files;
use crate::yaml::{Data, Node, entries, fields, get, text};

/// What is read here and stands neither in the limit nor, under its own name, in the rule.
const OF_RULE: [&str; 8] = [
    "match",
    "key",
    "rate",
    "tiers",
    "cost",
    "on_failure",
    "when_missing",
    "quota",
];
/// What `tiers` are by, if the sidecar knows whose key it is.
const CONSUMER: &str = "consumer";
/// What a rule has under the same name.
const AS_IN_RULE: [&str; 3] = ["shadow", "stop", "reply"];

/// An entry in the file.
pub struct Limit<'a> {
    pub name: &'a Spanned<String>,
    pub node: &'a Node,
    pub file: &'a Node,
}

/// What entries stand for.
#[derive(Default)]
pub struct Long {
    pub limits: Vec<(Spanned<String>, Node)>,
    pub rules: Vec<Node>,
    pub consumers: Vec<(Spanned<String>, Node)>,
    pub defaults: Vec<(&'static str, Vec<String>)>,
}

/// Fields of a limit's rule, and what the file calls them.
pub fn names(rule: &str, limit: &str) -> [(String, String); 5] {
    let of = |long: &str, short: &str| {
        (
            format!("`{rule}.{long}"),
            format!("`limits.{limit}.{short}"),
        )
    };
    [
        of("checks[0].limit", "tiers"),
        of("checks[0].key[0]", "key"),
        of("checks[0].", ""),
        of("when_unavailable", "on_failure"),
        of("", ""),
    ]
}

impl Long {
    fn default_of(&mut self, limit: &str, default: &'static str) {
        match self
            .defaults
            .iter_mut()
            .find(|(known, _)| *known == default)
        {
            Some((_, limits)) => limits.push(limit.to_owned()),
            None => self.defaults.push((default, vec![limit.to_owned()])),
        }
    }
}

impl Limit<'_> {
    fn get(&self, field: &str) -> Option<&Node> {
        get(self.node, field)
    }

    /// Adds what it stands for.
    pub fn expand(&self, files: &mut Files, long: &mut Long) -> Read<()> {
        let is_short = fields(self.node).iter().any(|(name, _)| {
            OF_RULE.contains(&name.value.as_str()) || AS_IN_RULE.contains(&name.value.as_str())
        });
        if !is_short {
            long.limits.push((self.name.clone(), self.node.clone()));
            return Ok(());
        }
        let limit = match (self.get("tiers"), self.get("rate"), self.get("windows")) {
            (Some(tiers), None, None) => self.tiers(tiers, long)?,
            (None, Some(rate), None) => {
                self.add(self.name.value.clone(), rate, long)?;
                value_at(self.node, self.name.value.as_str())
            }
            (None, None, Some(_)) => {
                long.limits.push((self.name.clone(), self.without_rule([])));
                value_at(self.node, self.name.value.as_str())
            }
            (None, None, None) => {
                return mistake(
                    self.node,
                    "`rate` is missing: give the units and the time, such as `100/1m`, or `tiers`",
                );
            }
            _ => {
                return mistake(
                    self.node,
                    "has more than one of `rate`, `tiers` and `windows`: keep one of them",
                );
            }
        };
        if let Some(rule) = self.rule(limit, files, long)? {
            long.rules.push(rule);
        }
        Ok(())
    }

    /// What of the entry belongs to the limit, with these fields.
    fn without_rule<const N: usize>(&self, more: [(&str, Node); N]) -> Node {
        let own = fields(self.node).iter().filter(|(name, _)| {
            let name = name.value.as_str();
            !OF_RULE.contains(&name) && !AS_IN_RULE.contains(&name)
        });
        let own = own.map(|(name, value)| (name.value.as_str(), value.clone()));
        fields_at(self.node, more.into_iter().chain(own))
    }

    /// Adds a limit of this rate.
    fn add(&self, name: String, rate: &Node, long: &mut Long) -> Read<()> {
        let (windows, algorithm) = rate::read(rate)?;
        let limit = if self.get("algorithm").is_some() {
            self.without_rule([("windows", windows)])
        } else {
            if algorithm == "sliding_log" {
                long.default_of(&name, "`algorithm: sliding_log`, which is exact and takes 13 bytes for each request in the window");
            } else {
                long.default_of(
                    &name,
                    "`algorithm: fixed_window`, as calendar windows need, in `time_zone: UTC`",
                );
            }
            self.without_rule([
                ("algorithm", value_at(rate, algorithm)),
                ("windows", windows),
            ])
        };
        let name = Spanned::new(name, self.name.referenced, self.name.defined);
        long.limits.push((name, limit));
        Ok(())
    }

    /// Adds a limit for each tier; the long form's choice among them.
    fn tiers(&self, node: &Node, long: &mut Long) -> Read<Node> {
        let Some(by) = get(node, "by") else {
            return wrong(node, "tiers");
        };
        if get(node, "default").is_none() {
            return mistake(
                node,
                "`tiers` has no `default`: add the rate for requests that name no tier, or an unknown one",
            );
        }
        let mut map = Vec::new();
        for (tier, rate) in fields(node).iter().filter(|(tier, _)| tier.value != "by") {
            let name = format!("{}.{}", self.name.value, tier.value);
            if !is_name(&name) {
                let why = format!(
                    "`tiers`: {} is no name of a tier: use letters, digits, `-`, `_` and `.`, at most 64 with the limit's name",
                    shown(&tier.value)
                );
                return mistake(rate, why);
            }
            self.add(name.clone(), rate, long)?;
            map.push((tier.value.as_str(), value_at(rate, name)));
        }
        let map = fields_at(node, map);
        if text(by) == Some(CONSUMER) {
            return Ok(fields_at(node, [(CONSUMER, map)]));
        }
        let by = key::component(by, self.file)?;
        Ok(fields_at(node, [("by", by), ("map", map)]))
    }

    /// The consumers in this file, with the limits of each.
    fn consumers(&self, file: &Node, limit: &Node, files: &mut Files) -> Read<Node> {
        let name = super::text_of(file, "key")?;
        let read = files.read(name).map_err(|why| why.to_string());
        let read = match read.and_then(|content| consumers_file::parse(&content)) {
            Ok(read) => read,
            Err(why) => return mistake(file, format!("`consumers` is {}: {why}", shown(name))),
        };
        let limits = match get(limit, CONSUMER) {
            Some(tiers) => tiers.clone(),
            None if text(limit).is_some() => fields_at(file, [("default", limit.clone())]),
            None => {
                return mistake(
                    limit,
                    "`tiers` of named consumers are by `consumer`: write that, or leave `consumers` away",
                );
            }
        };
        let keys = read.keys().map(|(hash, name)| (hash, value_at(file, name)));
        let keys = fields_at(file, keys);
        let pepper = value_at(file, read.pepper.as_str());
        Ok(fields_at(
            file,
            [("pepper", pepper), ("keys", keys), ("limits", limits)],
        ))
    }

    /// The rule; `None` if the limit is for no request.
    fn rule(&self, limit: Node, files: &mut Files, long: &mut Long) -> Read<Option<Node>> {
        let name = self.name.value.as_str();
        let matched = match self.get("match") {
            Some(node) => matching::read(node)?,
            None => {
                long.default_of(name, "applies to every request (no `match`)");
                matching::read(&value_at(self.node, "all"))?
            }
        };
        let Some((matched, leaves_preflights)) = matched else {
            let not_used =
                |field: &&str| !matches!(*field, "match" | "rate") && self.get(field).is_some();
            let mut of_rule = OF_RULE.iter().chain(&AS_IN_RULE).copied();
            return match of_rule.find(not_used) {
                Some(field) => mistake(
                    self.node,
                    format!(
                        "`{field}` is for requests, and `match: none` matches none: remove one of the two"
                    ),
                ),
                None => Ok(None),
            };
        };
        if leaves_preflights {
            long.default_of(name, "preflights (OPTIONS with access-control-request-method) are not counted: list OPTIONS in `match` for that");
        }
        let on_failure = self.get("on_failure").cloned().unwrap_or_else(|| {
            long.default_of(
                name,
                "`on_failure: allow`: without a verdict requests pass, unmetered",
            );
            value_at(self.node, "allow")
        });
        if !matches!(text(&on_failure), Some("allow" | "deny")) {
            return wrong(&on_failure, "on_failure");
        }
        let check = self.check(limit, files, long)?;
        let mut rule = vec![("name", value_at(self.node, name))];
        if !fields(&matched).is_empty() {
            rule.push(("match", matched));
        }
        rule.push(("checks", list_at(self.node, vec![check])));
        rule.push(("when_unavailable", on_failure));
        let same = AS_IN_RULE
            .iter()
            .filter_map(|field| Some((*field, self.get(field)?.clone())));
        rule.extend(same);
        Ok(Some(fields_at(self.node, rule)))
    }

    fn check(&self, limit: Node, files: &mut Files, long: &mut Long) -> Read<Node> {
        let Some(given) = self.get("key") else {
            return mistake(
                self.node,
                "`key` is missing: say whom it counts, such as `{ header: x-api-key }` or `address`, or `everyone` for all together",
            );
        };
        let key = key::read(given, self.file)?;
        let of_consumers = match get(given, "consumers") {
            None => None,
            Some(file) => {
                let consumers = self.consumers(file, &limit, files)?;
                long.consumers.push((self.name.clone(), consumers));
                Some(value_at(file, true))
            }
        };
        let limit = match of_consumers {
            Some(_) => value_at(&limit, self.name.value.as_str()),
            None if get(&limit, CONSUMER).is_some() => {
                return mistake(
                    &limit,
                    "`tiers` are by `consumer`, and `key` names no consumers: add `consumers: FILE` to it",
                );
            }
            None => limit,
        };
        let mut check = vec![("limit", limit), ("key", key.clone())];
        check.extend(of_consumers.map(|flag| ("consumers", flag)));
        if let Some(given) = self.get("cost") {
            check.push(("cost", cost::read(given)?));
        }
        if let Some(quota) = self.get("quota") {
            check.push(("quota", self.quota(quota)?));
        }
        match self.get("when_missing") {
            Some(given) if text(given) == Some("address") => {
                check.push(("when_missing", self.by_address(given)))
            }
            Some(given) => check.push(("when_missing", given.clone())),
            None if entries(&key).iter().any(key::can_be_absent) => {
                long.default_of(&self.name.value, "`when_missing: address`: requests without the key are counted by address, IPv6 by /64");
                check.push(("when_missing", self.by_address(given)));
            }
            None => {}
        }
        Ok(fields_at(self.node, check))
    }

    fn by_address(&self, at: &Node) -> Node {
        let address = key::address(&fields_at(at, []), self.file);
        fields_at(at, [("address", address)])
    }

    /// A quota from a claim, or from metadata.
    fn quota(&self, node: &Node) -> Read<Node> {
        match (&node.value, get(node, "jwt")) {
            (_, Some(jwt)) => Ok(fields_at(node, [("jwt", key::claim(jwt, self.file)?)])),
            (Data::Fields(_), None) => Ok(node.clone()),
            _ => wrong(node, "quota"),
        }
    }
}
