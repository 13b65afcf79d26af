//! Named consumers: whose bucket a hashed key belongs to.
//!
//! Rules ask for the name of an entry of `consumers` with a key of the filter that has both, `COMPONENT#HASH` and what
//! replaces it (`sluicegate_rules::MISSING`). Here that becomes one of the policy's limits, and one of the two keys.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_protocol::{DIGEST_DIGITS, is_digits};
use sluicegate_rules::{MISSING, SHADOW};

use super::consumers_file::{HASH_DIGITS, MAX_CONSUMER_KEYS};
use super::fields::is_name;
use super::rules::Limits;
use crate::mask::shown;

/// Precedes a consumer's name in its key. No source of a filter has this name, so that no client can send such a key.
const CONSUMER: &str = "@consumer=";
/// The limit of consumers that have none of their own, and of everybody else.
pub(super) const DEFAULT: &str = "default";

/// The key of a consumer's bucket.
pub fn consumer_key(name: &str) -> String {
    format!("{CONSUMER}{name}")
}

/// The consumer whose key this is, if it is one's.
pub fn consumer_of(key: &str) -> Option<&str> {
    split_shadow(key).1.strip_prefix(CONSUMER)
}

/// An entry of `consumers`: whose the keys are that rules ask with, and which limits count them.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct Consumers {
    /// the 12 digits at the head of the file that `sluicegate consumers` writes
    pub pepper: String,
    /// a mapping from the hash of each key to the name of its consumer
    pub keys: BTreeMap<String, String>,
    /// a mapping from each consumer with a limit of its own to that limit, and `default`
    pub limits: BTreeMap<String, String>,
}

/// By the name of the limit that rules ask for.
pub(super) type ConsumersByLimit = BTreeMap<String, Arc<Consumers>>;

/// Reads the entries of a policy with these limits. Adds mistakes to `mistakes`, and the names of entries to the limits that rules
/// may name; filters get the windows of an entry if it has only one limit.
pub(super) fn read<'f>(
    file: &'f BTreeMap<String, Consumers>,
    limits: &mut Limits<'f>,
    mistakes: &mut Vec<String>,
    line: impl Fn(&str) -> usize,
) -> ConsumersByLimit {
    let keys = file.values().flat_map(|entry| entry.keys.keys());
    // Several entries may have one file.
    let keys = keys.collect::<BTreeSet<_>>().len();
    if keys > MAX_CONSUMER_KEYS {
        mistakes.push(format!(
            "`consumers`: {keys} keys over all entries; the maximum is {MAX_CONSUMER_KEYS}: remove those that are no longer in use"
        ));
    }
    let own = limits.clone();
    for (name, entry) in file {
        if let Err(why) = entry.check(name, &own) {
            let (line, name) = (line(name), shown(name));
            mistakes.push(format!("line {line}: consumers {name}: {why}"));
        }
        let default = own.get(entry.limit_of(DEFAULT)).copied().flatten();
        limits.insert(name, default.filter(|_| entry.limits.len() == 1));
    }
    let entries = file.iter();
    let entries = entries.map(|(name, entry)| (name.clone(), Arc::new(entry.clone())));
    entries.collect()
}

impl Consumers {
    fn check(&self, own_name: &str, known: &Limits<'_>) -> Result<(), String> {
        if !is_digits(&self.pepper, DIGEST_DIGITS) {
            // Not quoted: it may be the pepper itself.
            return Err(format!(
                "`pepper` is not the {DIGEST_DIGITS} digits at the head of the file that `sluicegate consumers` writes"
            ));
        }
        let mut keys = self.keys.iter();
        let is_name = |name: &str| is_name(name) && !is_digits(name, HASH_DIGITS);
        if let Some(index) =
            keys.position(|(hash, name)| !is_digits(hash, HASH_DIGITS) || !is_name(name))
        {
            return Err(format!(
                "`keys`: entry {} is not a key's hash and a name, as `sluicegate consumers add` makes them",
                index + 1
            ));
        }
        for (consumer, limit) in &self.limits {
            let (field, shown) = (shown(consumer), shown(limit));
            match known.get(limit.as_str()) {
                // Filters would ask for parts of leases by keys of their own.
                Some(Some(limit)) if limit.lease.is_some() => {
                    return Err(format!(
                        "`limits`: {field}: limit {shown} has a `lease`, which limits of consumers cannot have: remove it"
                    ));
                }
                Some(_) => {}
                None => {
                    return Err(format!(
                        "`limits`: {field}: the policy has no limit {shown}: add it to its `limits`"
                    ));
                }
            }
        }
        if !self.limits.contains_key(DEFAULT) {
            return Err(format!(
                "`limits` has no `{DEFAULT}`: name the limit of everybody who has none of their own"
            ));
        }
        if known.contains_key(own_name) && self.limits.values().all(|limit| limit != own_name) {
            let why = "the policy has a limit of this name, which nobody could ask for: rename one of them";
            return Err(why.to_owned());
        }
        Ok(())
    }

    pub fn limit_of(&self, consumer: &str) -> &str {
        let own = self.limits.get(consumer);
        let found = own.or_else(|| self.limits.get(DEFAULT));
        found.map_or("", String::as_str)
    }

    /// Whether rules ask for an entry with keys such as this, and not for a limit of the same name.
    pub fn is_asked_with(key: &str) -> bool {
        let (_, own) = split_shadow(key);
        parts(own).is_some() || own.starts_with(CONSUMER) || own.starts_with(MISSING)
    }

    /// The consumer's key for the filter's key of a request, without what replaces it: people leave that out.
    pub fn owner(&self, key: &str) -> Option<String> {
        let (shadow, own) = split_shadow(key);
        let (_, hash) = own.split_once('#')?;
        let name = self.keys.get(hash)?;
        Some(format!("{shadow}{CONSUMER}{name}"))
    }

    /// The limits that count their keys.
    pub fn limits(&self) -> impl Iterator<Item = &String> {
        self.limits.values()
    }

    /// The consumers that have a key or a limit of their own.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.keys
            .values()
            .map(String::as_str)
            .chain(self.with_limits())
    }

    fn with_limits(&self) -> impl Iterator<Item = &str> {
        let of_limits = self.limits.keys().map(String::as_str);
        of_limits.filter(|consumer| *consumer != DEFAULT)
    }

    /// The consumers that have limits of their own and no key.
    pub fn without_keys(&self) -> impl Iterator<Item = &str> {
        let has_key = |consumer: &str| self.keys.values().any(|owner| owner == consumer);
        self.with_limits()
            .filter(move |consumer| !has_key(consumer))
    }

    /// The limit and the key of a bucket, for a key of the filter. Other programs may give a consumer's key; another key of
    /// theirs stays as it is.
    pub fn resolve<'k>(&self, key: &'k str) -> (&str, Cow<'k, str>) {
        let (shadow, own) = split_shadow(key);
        if let Some(consumer) = consumer_of(own) {
            return (self.limit_of(consumer), key.into());
        }
        let Some((hash, instead)) = parts(own) else {
            return (self.limit_of(DEFAULT), key.into());
        };
        match self.keys.get(hash) {
            Some(name) => (
                self.limit_of(name),
                format!("{shadow}{CONSUMER}{name}").into(),
            ),
            None => (self.limit_of(DEFAULT), format!("{shadow}{instead}").into()),
        }
    }
}

/// What a shadow rule puts before its keys, to count under keys of its own, and the rest.
fn split_shadow(key: &str) -> (&str, &str) {
    let of_shadow = key.starts_with(SHADOW).then(|| key.find(';')).flatten();
    key.split_at(of_shadow.map_or(0, |end| end + 1))
}

/// Whether a key is the filter's without what replaces it.
pub fn is_hash_alone(key: &str) -> bool {
    let (_, own) = split_shadow(key);
    own.contains('#') && !own.contains(';')
}

/// The hash in a key of the filter, and the key of a request without it.
fn parts(key: &str) -> Option<(&str, &str)> {
    let (component, instead) = key.split_once(';')?;
    let (name, hash) = component.split_once('#')?;
    let missing = instead.strip_prefix(MISSING)?.strip_prefix(name)?;
    missing.starts_with('=').then_some((hash, instead))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::policy::{Expanded, Files, Policy};

    const HASH: &str = "00112233445566778899aabbccddeeff";
    const OTHER: &str = "ffeeddccbbaa99887766554433221100";

    fn text() -> String {
        format!(
            "
limits:
  partner.acme: {{ algorithm: sliding_log, windows: [{{ quota: 50, per: 1m }}] }}
  partner.default: {{ algorithm: sliding_log, windows: [{{ quota: 5, per: 1m }}] }}
consumers:
  partner:
    pepper: \"0123456789ab\"
    keys: {{ {HASH}: acme, {OTHER}: beta }}
    limits: {{ acme: partner.acme, default: partner.default }}
rules:
  default:
    rules:
      - name: partner
        checks: [{{ limit: partner, key: [{{ header: x-api-key }}], when_missing: {{ address: {{}} }}, consumers: true }}]
        when_unavailable: allow
"
        )
    }

    fn resolved(policy: &Policy, limit: &str, key: &str) -> String {
        let (mut limit, mut key) = (limit.into(), key.into());
        policy.rename(&mut limit, &mut key);
        format!("{limit} {key}")
    }

    #[test]
    fn a_key_of_a_consumer_is_its_bucket_and_every_other_is_that_of_a_request_without_one() {
        let policy = Policy::parse(&text()).unwrap();
        let missing = "@missing/x-api-key=192.0.2.1";
        let unknown = "0".repeat(32);
        for (key, expected) in [
            (
                format!("x-api-key#{HASH};{missing}"),
                "partner.acme @consumer=acme".to_owned(),
            ),
            (
                format!("x-api-key#{OTHER};{missing}"),
                "partner.default @consumer=beta".to_owned(),
            ),
            (
                format!("x-api-key#{unknown};{missing}"),
                format!("partner.default {missing}"),
            ),
            (missing.to_owned(), format!("partner.default {missing}")),
            (
                format!("@shadow=r;x-api-key#{HASH};{missing}"),
                "partner.acme @shadow=r;@consumer=acme".to_owned(),
            ),
            (
                format!("@shadow=r;x-api-key#{unknown};{missing}"),
                format!("partner.default @shadow=r;{missing}"),
            ),
            (
                format!("@shadow=r;{missing}"),
                format!("partner.default @shadow=r;{missing}"),
            ),
            // What other programs give.
            (
                "@consumer=acme".to_owned(),
                "partner.acme @consumer=acme".to_owned(),
            ),
            (
                "@consumer=nobody".to_owned(),
                "partner.default @consumer=nobody".to_owned(),
            ),
            ("job-7".to_owned(), "partner.default job-7".to_owned()),
            (
                format!("x-api-key#{HASH}"),
                format!("partner.default x-api-key#{HASH}"),
            ),
            (
                format!("x#{HASH};@missing/y=1"),
                format!("partner.default x#{HASH};@missing/y=1"),
            ),
        ] {
            assert_eq!(resolved(&policy, "partner", &key), expected, "{key}");
        }
        let own = format!("x-api-key#{HASH};{missing}");
        assert_eq!(
            resolved(&policy, "partner.acme", &own),
            format!("partner.acme {own}")
        );
    }

    #[test]
    fn consumers_of_an_earlier_policy_are_resolved_until_filters_have_the_new_rules() {
        let before = Policy::parse(&text()).unwrap();
        let (limits, _) = text()
            .split_once("consumers:")
            .map(|(limits, _)| (limits.to_owned(), ()))
            .unwrap();
        let after = Policy::parse(&limits).unwrap();
        assert!(!after.limits_as(&before));
        let after = before.may_become(after, 0).unwrap();
        assert_eq!(
            resolved(&after, "partner", "@consumer=acme"),
            "partner.acme @consumer=acme"
        );
        let (forgotten, _) = after.without_unused(|_| false, 60_000_000).unwrap();
        assert_eq!(
            resolved(&forgotten, "partner", "@consumer=acme"),
            "partner @consumer=acme"
        );
    }

    /// `partner` was a limit and became an entry, or the reverse: rules of before and after ask for it with keys of their own.
    #[test]
    fn a_limit_that_became_an_entry_of_consumers_is_told_from_it_by_the_keys() {
        let entry = Policy::parse(&text()).unwrap();
        let (limits, _) = text()
            .split_once("consumers:")
            .map(|(limits, _)| (limits.to_owned(), ()))
            .unwrap();
        let limit = Policy::parse(&limits.replace("partner.acme", "partner")).unwrap();
        let missing = "@missing/x-api-key=192.0.2.1";
        let own = format!("x-api-key#{HASH}");
        for [before, after] in [[&entry, &limit], [&limit, &entry]] {
            let policy = before.may_become(after.clone(), 0).unwrap();
            assert_eq!(resolved(&policy, "partner", &own), format!("partner {own}"));
            assert_eq!(
                resolved(&policy, "partner", &format!("{own};{missing}")),
                "partner.acme @consumer=acme"
            );
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_remedy_and_without_a_hash() {
        for (from, to, expected) in [
            ("\"0123456789ab\"", "\"x\"", "`pepper` is not the 12 digits"),
            (
                "acme: partner.acme",
                "acme: partner.gold",
                "no limit `partner.gold`",
            ),
            (
                "default: partner.default }",
                "beta: partner.default }",
                "no `default`",
            ),
            (": beta", ": b/", "entry 2 is not"),
            (OTHER, "0123", "is not a key's hash"),
            (OTHER, HASH, "this key is given twice"),
            ("limits: { acme", "limit: { acme", "did you mean `limits`"),
            ("  partner:\n", "  partners:\n", "no limit `partner`"),
            (", consumers: true", "", "must be `true` where"),
            (
                "limit: partner,",
                "limit: partner.acme,",
                "and nowhere else",
            ),
            (
                "limits:\n",
                "limits:\n  partner: { algorithm: sliding_log, windows: [{ quota: 5, per: 1m }] }\n",
                "rename one",
            ),
            (
                "sliding_log, windows: [{ quota: 50, per: 1m }]",
                "fixed_window, lease: { longest: 100ms }, windows: [{ quota: 50, per: 1m }]",
                "`lease`",
            ),
        ] {
            assert!(text().contains(from), "{from}");
            let expanded = Expanded::read(&text().replace(from, to), &mut Files::default());
            let policy = expanded.and_then(|expanded| expanded.policy());
            let mistakes = policy.unwrap_err().join("\n");
            assert!(mistakes.contains(expected), "{to}: {mistakes}");
            assert!(
                !mistakes.contains(HASH) && mistakes.contains("line "),
                "{mistakes}"
            );
        }
        let keys: String = (0..1_000).map(|n| format!("{n:032x}: beta, ")).collect();
        let many = text().replace(&format!("{OTHER}: beta"), &keys);
        assert!(Policy::parse(&many).unwrap_err().contains("1001 keys"));
    }

    /// Filters list the windows that they know of.
    #[test]
    fn filters_are_told_the_windows_of_consumers_that_share_one_limit() {
        let windows = |text: &str| {
            let policy = Policy::parse(text).unwrap();
            let document = policy.rules.document(&[], false, json!({}));
            document.contains(r#""partner":[[5,60000]]"#)
        };
        assert!(!windows(&text()));
        assert!(windows(&text().replace("acme: partner.acme, ", "")));
    }
}
