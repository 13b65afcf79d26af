//! An entry of `limits`: the limits of the long form, and the rule that asks for them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use serde_saphyr::Spanned;

use super::{
    Field, LIMIT, Mistake, Read, SCHEMA, fields_at, has_short, is_short, key, matching, mistake,
    named, node, placed, units, wrong,
};
use crate::mask::shown;
use crate::policy::consumers::DEFAULT;
use crate::policy::consumers_file::{self, ConsumersFile};
use crate::policy::fields::is_name;
use crate::policy::files::Files;
use crate::policy::schemas::{fields_of, said, takes};
use crate::yaml::{Data, Node, fields, get, text, value};

/// Fields of a limit's rule, and of the limit that they come from.
pub const FROM: [(&str, &str); 5] = [
    ("checks[0].limit", "tiers"),
    ("checks[0].key[0]", "key"),
    ("checks[0].", ""),
    ("when_unavailable", "on_failure"),
    ("", ""),
];

/// What `tiers` are by, if the sidecar knows whose key it is.
const CONSUMER: &str = "consumer";

/// What counts how many at once.
const SLOTS: &str = "concurrency";

/// An entry in the file.
pub struct Limit<'a> {
    pub name: &'a Spanned<String>,
    pub node: &'a Node,
    pub file: &'a Node,
}

/// What entries stand for.
#[derive(Default)]
pub struct Long {
    pub limits: Vec<Field>,
    /// By the names of their limits.
    pub rules: Vec<(String, Node)>,
    pub consumers: Vec<Field>,
    /// Defaults that apply, and the limits that they apply to.
    pub defaults: BTreeMap<String, Vec<String>>,
}

impl Long {
    fn default_of(&mut self, limit: &str, default: String) {
        let limits = self.defaults.entry(default).or_default();
        limits.push(limit.to_owned());
    }
}

impl Limit<'_> {
    fn get(&self, field: &str) -> Option<&Node> {
        get(self.node, field)
    }

    fn required(&self, field: &str) -> Read<&Node> {
        let why = || format!("`{field}` is missing: give {}", takes(&SCHEMA, field));
        self.get(field).ok_or_else(|| mistake(self.node, why()))
    }

    /// A field, or its default, of which people are told.
    fn or_default(&self, field: &str, long: &mut Long) -> Node {
        if let Some(given) = self.get(field) {
            return given.clone();
        }
        let of_field = |what| said(&SCHEMA, LIMIT, field, what).unwrap_or_default();
        let (default, means) = (of_field("default"), of_field("$comment"));
        long.default_of(&self.name.value, format!("`{field}: {default}`: {means}"));
        node(self.node, default.into())
    }

    /// Adds what it stands for.
    pub fn expand(&self, files: &mut Files, long: &mut Long) -> Read<()> {
        if !has_short(self.node, LIMIT) {
            long.limits.push((self.name.clone(), self.node.clone()));
            return Ok(());
        }
        let name = &self.name.value;
        let ways = ["tiers", "rate", "at_once", "windows"];
        let limit = match ways.map(|field| self.get(field)) {
            [Some(tiers), None, None, None] => self.tiers(tiers, long)?,
            [None, None, Some(slots), None] => self.add(name, Some(slots), long)?,
            [None, None, None, Some(_)] => self.add(name, None, long)?,
            [None, _, None, None] => self.add(name, Some(self.required("rate")?), long)?,
            _ => {
                let why = "has more than one of `rate`, `at_once`, `tiers` and `windows`: keep one of them";
                return Err(mistake(self.node, why));
            }
        };
        if self.get("match").and_then(text) != Some("none") {
            let rule = self.rule(limit, files, long)?;
            long.rules.push((name.clone(), rule));
            return Ok(());
        }
        let mut of_rule = fields_of(&SCHEMA, LIMIT)
            .filter(|(name, _)| !["match", "rate", "at_once", "expire"].contains(name));
        let why = "is for requests, and `match: none` matches none: remove one of the two";
        match of_rule.find_map(|(name, _)| Some((name, self.get(name)?))) {
            Some((field, given)) => Err(mistake(given, format!("`{field}` {why}"))),
            None => Ok(()),
        }
    }

    /// Adds a limit of this rate or so many slots, or else of its own windows; its name.
    fn add(&self, name: &str, rate: Option<&Node>, long: &mut Long) -> Read<Value> {
        let mut limit = fields(self.node).to_vec();
        limit.retain(|(name, _)| !is_short(LIMIT, &name.value));
        let slots = rate.and_then(|rate| match self.get("at_once") {
            Some(_) => Some(rate),
            None => get(rate, "at_once"),
        });
        if let Some(slots) = slots {
            if !matches!(&slots.value, Data::Scalar(Value::Number(number)) if number.as_u64() > Some(0))
            {
                return Err(wrong(slots, "at_once"));
            }
            let expire = self.or_default("expire", long);
            let windows = json!([{ "quota": value(slots), "per": value(&expire) }]);
            limit.insert(0, named("windows", node(slots, windows)));
            if let Some(given) = self.get("algorithm").and_then(text)
                && given != SLOTS
            {
                let why = format!("`at_once` is `algorithm: {SLOTS}`: remove `algorithm`");
                return Err(mistake(slots, why));
            }
            limit.retain(|(name, _)| name.value != "algorithm");
            limit.insert(0, named("algorithm", node(slots, SLOTS.into())));
        } else if let Some(expire) = self.get("expire") {
            return Err(mistake(
                expire,
                "`expire` goes with `at_once`, and a rate has none: remove it",
            ));
        } else if let Some(rate) = rate {
            let (windows, algorithm, means) = units::rate(rate)?;
            if means.is_some()
                && self.get("algorithm").and_then(text) == Some(SLOTS)
                && let Some(slots) = windows.pointer("/0/quota")
            {
                let why = format!(
                    "`algorithm: {SLOTS}` counts how many at once, which has no time: write `at_once: {slots}` in place of both"
                );
                return Err(mistake(rate, why));
            }
            limit.insert(0, named("windows", node(rate, windows)));
            let is_given = self.get("algorithm").is_some();
            if means.is_none() || !is_given {
                limit.retain(|(name, _)| name.value != "algorithm");
                limit.insert(0, named("algorithm", node(rate, algorithm.into())));
            }
            if let (Some(means), false) = (means, is_given) {
                long.default_of(name, format!("`algorithm: {algorithm}`: {means}"));
            }
        }
        let limit = placed(self.node, Data::Fields(limit));
        let placed_name = placed(self.name, name.to_owned());
        long.limits.push((placed_name, limit));
        Ok(name.into())
    }

    /// Adds a limit for each tier; the long form's choice among them.
    fn tiers(&self, node: &Node, long: &mut Long) -> Read<Value> {
        let by = get(node, "by").ok_or_else(|| wrong(node, "tiers"))?;
        if get(node, "default").is_none() {
            let why = "`tiers` has no `default`: add the rate for requests that name no tier, or an unknown one";
            return Err(mistake(node, why));
        }
        let mut map = Map::new();
        for (tier, rate) in fields(node).iter().filter(|(tier, _)| tier.value != "by") {
            let name = format!("{}.{}", self.name.value, tier.value);
            if !is_name(&name) {
                let tier = shown(&tier.value);
                let why = format!(
                    "`tiers`: {tier} is no name of a tier: use letters, digits, `-`, `_` and `.`, at most 64 with the limit's name"
                );
                return Err(mistake(rate, why));
            }
            let added = self.add(&name, Some(rate), long);
            let of_tier =
                |Mistake(line, why)| Mistake(line, format!("tier `{}`: {why}", tier.value));
            map.insert(tier.value.clone(), added.map_err(of_tier)?);
        }
        if text(by) == Some(CONSUMER) {
            return Ok(json!({ CONSUMER: map }));
        }
        Ok(json!({ "by": key::component(by, self.file)?, "map": map }))
    }

    /// Adds the consumers of this file, with these limits.
    fn consumers(&self, file: &Node, limit: Value, files: &mut Files, long: &mut Long) -> Read<()> {
        let name = super::text_of(file, "key")?;
        let read = files.read(name).map_err(|why| {
            format!("{why}; `sluicegate consumers add NAME --pepper-file FILE` makes this file")
        });
        let read = read.and_then(|content| consumers_file::parse(&content));
        let read =
            read.map_err(|why| mistake(file, format!("`consumers` is {}: {why}", shown(name))))?;
        let limits = match (limit.get(CONSUMER), limit.is_string()) {
            (Some(Value::Object(tiers)), _) => {
                for tier in read.tiers.keys().filter(|tier| !tiers.contains_key(*tier)) {
                    let means =
                        format!("`{tier}: default`: the file has this tier, and `tiers` have not");
                    long.default_of(&self.name.value, means);
                }
                let why = |why| mistake(self.get("tiers").unwrap_or(file), why);
                by_consumer(tiers, &read).map_err(why)?
            }
            (None, true) => json!({ "default": limit }),
            _ => {
                let why = "`tiers` of named consumers are by `consumer`: write that, or leave `consumers` away";
                return Err(mistake(self.get("tiers").unwrap_or(file), why));
            }
        };
        let keys: Map<_, _> = read
            .keys()
            .map(|(hash, name)| (hash.to_owned(), name.into()))
            .collect();
        let entry = json!({ "pepper": read.pepper, "keys": keys, "limits": limits });
        long.consumers
            .push(named(&self.name.value, node(file, entry)));
        Ok(())
    }

    fn rule(&self, limit: Value, files: &mut Files, long: &mut Long) -> Read<Node> {
        let key = self.required("key")?;
        let name = self.name.value.as_str();
        let given = self.or_default("match", long);
        let (matched, leaves_preflights) = matching::read(&given)?;
        if leaves_preflights {
            let default = "preflights (OPTIONS with access-control-request-method) are not counted: list OPTIONS in `match` for that";
            long.default_of(name, default.to_owned());
        }
        let components = key::read(key, self.file)?;
        let can_be_absent = components.iter().any(key::can_be_absent);
        let tiers = self.get("tiers").unwrap_or(self.node);
        let mut check = vec![("key", node(key, components.into()))];
        if let Some(file) = get(key, "consumers") {
            self.consumers(file, limit, files, long)?;
            check.insert(0, ("limit", node(file, name.into())));
            check.push(("consumers", node(file, true.into())));
        } else if limit.get(CONSUMER).is_some() {
            let why = "`tiers` are by `consumer`, and `key` names no consumers: add `consumers: FILE` to it";
            return Err(mistake(tiers, why));
        } else {
            check.insert(0, ("limit", node(tiers, limit)));
        }
        if let Some(given) = self.get("cost") {
            check.push(("cost", node(given, units::cost(given)?)));
        }
        if let Some(given) = self.get("quota") {
            check.push(("quota", node(given, self.quota(given)?)));
        }
        if can_be_absent || self.get("when_missing").is_some() {
            let mut given = self.or_default("when_missing", long);
            let by_address = get(&given, "address").map(fields);
            if text(&given) == Some("address") || by_address.is_some() {
                let address = key::address(by_address.unwrap_or_default(), self.file);
                given = node(&given, json!({ "address": address }));
            }
            check.push(("when_missing", given));
        }
        let on_failure = self.or_default("on_failure", long);
        if !matches!(text(&on_failure), Some("allow" | "deny")) {
            return Err(wrong(&on_failure, "on_failure"));
        }
        let check = fields_at(self.node, check);
        let mut rule = vec![
            ("name", node(self.node, name.into())),
            ("match", node(&given, matched)),
            ("checks", placed(self.node, Data::List(vec![check]))),
            ("when_unavailable", on_failure),
        ];
        let same = |field| Some((field, self.get(field)?.clone()));
        rule.extend(["shadow", "stop", "reply"].into_iter().filter_map(same));
        Ok(fields_at(self.node, rule))
    }

    /// A quota from a claim, or from metadata.
    fn quota(&self, node: &Node) -> Read<Value> {
        match (&node.value, get(node, "jwt")) {
            (_, Some(jwt)) => Ok(json!({ "jwt": key::claim(jwt, self.file)? })),
            (Data::Fields(_), None) => Ok(value(node)),
            _ => Err(wrong(node, "quota")),
        }
    }
}

/// The limit of each consumer that has a tier: the one in which the file lists it, or one of its own name. A tier that the file has is
/// no consumer.
fn by_consumer(tiers: &Map<String, Value>, file: &ConsumersFile) -> Result<Value, String> {
    let mut limits = Map::new();
    for (tier, limit) in tiers {
        let listed = file.tiers.get(tier);
        let own = (listed.is_none() || tier == DEFAULT).then_some(tier);
        for name in own.into_iter().chain(listed.into_iter().flatten()) {
            let other = limits.insert(name.clone(), limit.clone());
            if other.is_some_and(|other| other != *limit) {
                let name = shown(name);
                return Err(format!(
                    "`tiers`: consumer {name} is in `{tier}` and in another one: remove it from one of them"
                ));
            }
        }
    }
    Ok(limits.into())
}
