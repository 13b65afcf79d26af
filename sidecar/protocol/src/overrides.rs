//! Overrides: another quota, no limit or a block for one key of a limit. On the admin port.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::field_error::{self, FieldError};
use crate::{Code, MAX_KEY_BYTES, Problem, integer, is_digits};

/// Bytes of a key's SHA-256 that name it to operators, in hexadecimal digits: with 80 bits, who looks for a key with the
/// digits of another one tries 10^24 of them.
pub const SUBJECT_BYTES: usize = 10;

/// Most bytes of an override's reason.
pub const MAX_REASON_BYTES: usize = 256;
/// Most bytes of the name of an override's author.
pub const MAX_BY_BYTES: usize = 128;

/// The terms of an override: what the key may take, until when and why. Exactly one of `quota`, `windows`, `unlimited` and
/// `blocked` is set.
// In requests, answers, stores and the policy file: each comment says what to give, and errors of the policy file repeat that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverrideTerms {
    /// The key, in the policy file. Elsewhere it is beside the terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub key: Option<String>,
    /// a whole number of 1 or more: the new quota, for a limit with one window
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    #[serde(deserialize_with = "integer::optional")]
    pub quota: Option<u64>,
    /// a whole number of 1 or more: the new burst of a token bucket; by default, the limit's is scaled with the quota
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    #[serde(deserialize_with = "integer::optional")]
    pub burst: Option<u64>,
    /// a list of mappings, for example `- { quota: 100, per: 1m }`: new quotas, for a limit with several windows
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<OverrideWindow>,
    /// `true` to admit all checks of this limit and key without asking the store; they take nothing
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// `true` to deny all checks of this limit and key without asking the store
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    /// a time in RFC 3339 format such as `2026-11-22T03:00:00Z`, when the override ends; by default it does not end
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// a text of one line, at most 256 bytes: the reason, which clients never see
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_REASON_BYTES)))]
    pub reason: Option<String>,
    /// a name of at most 128 bytes: the author, as given by the caller and not verified
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_BY_BYTES)))]
    pub by: Option<String>,
}

/// What the key may take, in short form: `unlimited`, `blocked`, `quota 500`, `quota 500/1m 9/1s burst 3`.
impl fmt::Display for OverrideTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unlimited {
            return f.write_str("unlimited");
        }
        if self.blocked {
            return f.write_str("blocked");
        }
        f.write_str("quota")?;
        let burst = |f: &mut fmt::Formatter<'_>, burst: Option<u64>| match burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        };
        if let Some(quota) = self.quota {
            write!(f, " {quota}")?;
            burst(f, self.burst)?;
        }
        for window in &self.windows {
            write!(f, " {}/{}", window.quota, window.per)?;
            burst(f, window.burst)?;
        }
        Ok(())
    }
}

impl OverrideTerms {
    /// The same, for a limit of which the quota is what may be in use `at_once`: `500 at once`.
    pub fn allowance(&self, at_once: bool) -> String {
        match self.quota.filter(|_| at_once) {
            Some(quota) => format!("{quota} at once"),
            None => self.to_string(),
        }
    }
}

/// The quota of one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverrideWindow {
    /// Units per window.
    #[serde(deserialize_with = "integer::required")]
    pub quota: u64,
    /// The window of the limit, as in the policy: its length (`1m`), or a calendar window (`month`), with its time zone if the
    /// limit has several of them (`month Europe/Berlin`).
    pub per: String,
    /// The new burst of a token bucket. By default, the limit's burst is scaled with the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "integer::optional")]
    pub burst: Option<u64>,
}

/// The keys of a limit that an override applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Whom {
    /// The key, exactly as in decisions.
    Key(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_KEY_BYTES)))] String),
    /// The first 20 hexadecimal digits of the key's SHA-256. Does not match a key with a header, cookie, query or path
    /// component in plain text, which a client can choose.
    Subject(#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[0-9a-f]{20}$")))] String),
    /// All keys of the limit: `true`, with `unlimited` only. A key that is blocked stays so.
    AllKeys(#[cfg_attr(feature = "schema", schemars(extend("const" = true)))] bool),
}

/// The body of `PUT /v1/overrides`: sets an override and replaces an earlier one for the same limit and key.
///
/// Limit and key are in the body, not in the path: a key may contain any character and may be a secret, and proxies log
/// paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("unevaluatedProperties" = false)))]
pub struct SetOverride {
    /// The name of a limit, or of an entry of `consumers`, in the policy.
    pub limit: String,
    /// The keys.
    #[serde(flatten)]
    pub whom: Whom,
    /// What the key may take.
    #[serde(flatten)]
    pub terms: OverrideTerms,
    /// Even if the policy has nobody of this name, or the key has in plain text what all rules hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The body of `DELETE /v1/overrides`: removes an override from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("unevaluatedProperties" = false)))]
pub struct RemoveOverride {
    /// The name of a limit, or of an entry of `consumers`, in the policy.
    pub limit: String,
    /// The keys.
    #[serde(flatten)]
    pub whom: Whom,
    /// Who removes it, and why.
    #[serde(flatten)]
    pub author: Author,
}

/// Author and reason of a removal, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Author {
    /// The reason, for the audit log; at most [`MAX_REASON_BYTES`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_REASON_BYTES)))]
    pub reason: Option<String>,
    /// The author of the removal, for the audit log; at most [`MAX_BY_BYTES`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_BY_BYTES)))]
    pub by: Option<String>,
}

/// Where an override is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverrideSource {
    /// In the policy file.
    Policy,
    /// In the store. It takes precedence over one in the policy file.
    Store,
}

/// Whether an override is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverrideState {
    /// It is in force.
    InForce,
    /// It is in force: a block that the store had lost, and a sidecar has written back.
    Restored,
    /// It is not in force until it is set again: it was removed or replaced, and the store has it again, as from an old
    /// snapshot.
    Returned,
    /// Its end has passed.
    Ended,
    /// It is in the policy file, and the store has another one for the same limit and key.
    Hidden,
    /// The policy has no such limit, window or consumer. It acts for as long as filters ask for it by earlier rules.
    Unfit,
}

/// An entry of the list of overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedOverride {
    /// The limit's name in the policy.
    pub limit: String,
    /// The key, exactly as in decisions, if the override names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The first 20 hexadecimal digits of the key's SHA-256, as in `sluicegate top`, `sluicegate explain` and the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Whether it applies to all keys of the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_keys: bool,
    /// What the key may take.
    #[serde(flatten)]
    pub terms: OverrideTerms,
    /// Whether the limit has `algorithm: concurrency`: then the quota is what may be in use at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Where it is stored.
    pub source: OverrideSource,
    /// Whether it is in force.
    pub state: OverrideState,
}

impl ListedOverride {
    /// What the key may take, in short form.
    pub fn allowance(&self) -> String {
        self.terms.allowance(self.at_once)
    }
}

/// The body that answers `GET /v1/overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OverrideList {
    /// All overrides, sorted by limit and key.
    pub overrides: Vec<ListedOverride>,
}

/// The body that answers `PUT /v1/overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OverrideWasSet {
    /// The override that was set.
    #[serde(rename = "override")]
    pub now: ListedOverride,
    /// Whether it replaced an earlier override in the store.
    pub replaced: bool,
    /// Whether units of the key were counted at that moment; absent if its key is not known, or if it is for all keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<bool>,
    /// What its key is made of, without values: `@address`, `x-tenant;@method`. Absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// No rule of the policy makes this key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_rule: bool,
}

/// The body that answers `DELETE /v1/overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OverrideWasRemoved {
    /// Whether the store had an override for the limit and key.
    pub removed: bool,
    /// The policy file's override for the same limit and key, which is in force now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_policy: Option<ListedOverride>,
}

/// Reads the body of `PUT /v1/overrides`.
///
/// # Errors
/// The body is not a [`SetOverride`].
pub fn read_set_override(body: &[u8]) -> Result<SetOverride, Problem> {
    let mut fields: Fields = read(body)?;
    let force = match fields.remove("force") {
        None => false,
        Some(force) => (force.as_bool())
            .ok_or_else(|| malformed("`force` is neither `true` nor `false`").at("force"))?,
    };
    let (limit, whom, terms): (_, _, OverrideTerms) = read_named(fields)?;
    if matches!(whom, Whom::AllKeys(_)) && !terms.unlimited {
        let why = "`all_keys` goes with `unlimited` only: to block all keys, set `rate: 0` in the policy; for another quota, another rate";
        return Err(malformed(why).at("all_keys"));
    }
    Ok(SetOverride {
        limit,
        whom,
        terms,
        force,
    })
}

/// Reads the body of `DELETE /v1/overrides`.
///
/// # Errors
/// The body is not a [`RemoveOverride`].
pub fn read_remove_override(body: &[u8]) -> Result<RemoveOverride, Problem> {
    let (limit, whom, author) = read_named(read(body)?)?;
    Ok(RemoveOverride {
        limit,
        whom,
        author,
    })
}

type Fields = serde_json::Map<String, serde_json::Value>;

/// Reads a body that names a limit and keys. `serde` cannot deny unknown fields of a flattened type, and a misspelt `until`
/// must not create an override without an end: so the names are removed and the rest is parsed strictly.
fn read_named<T: DeserializeOwned>(mut fields: Fields) -> Result<(String, Whom, T), Problem> {
    let Some(serde_json::Value::String(limit)) = fields.remove("limit") else {
        return Err(malformed("`limit` is missing, or no string").at("limit"));
    };
    let named = ["key", "subject", "all_keys"].map(|field| fields.remove_entry(field));
    let named: serde_json::Map<_, _> = named.into_iter().flatten().collect();
    let whom = serde_json::from_value(named.into()).ok();
    let whom = whom.filter(|whom| *whom != Whom::AllKeys(false));
    let which = "give exactly one of `key`, `subject` (strings) and `all_keys: true`";
    let whom = whom.ok_or_else(|| malformed(which).at("key"))?;
    match &whom {
        Whom::Key(key) => check_key(key)?,
        Whom::Subject(digits) => check_subject(digits)?,
        Whom::AllKeys(_) => {}
    }
    let rest = serde_json::to_vec(&fields).unwrap_or_default();
    Ok((limit, whom, read(&rest)?))
}

pub(crate) fn check_subject(digits: &str) -> Result<(), Problem> {
    let why = "`subject` is not 20 hexadecimal digits, as `sluicegate top` and Envoy's access log show them";
    is_digits(digits, 2 * SUBJECT_BYTES)
        .then_some(())
        .ok_or_else(|| malformed(why).at("subject"))
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    field_error::read(body).map_err(|error: FieldError| error.problem(Code::MalformedEntry, "", ""))
}

fn malformed(why: impl fmt::Display) -> Problem {
    Problem::new(Code::MalformedEntry, why)
}

/// Refuses a key that no decision can have.
///
/// # Errors
/// The key is empty or too long.
pub fn check_key(key: &str) -> Result<(), Problem> {
    if key.is_empty() {
        let why = "`key` is empty: use the key exactly as in decisions";
        return Err(Problem::new(Code::EmptyKey, why).at("key"));
    }
    if key.len() > MAX_KEY_BYTES {
        let why = format_args!(
            "`key` has {} bytes; the maximum is {MAX_KEY_BYTES}",
            key.len()
        );
        return Err(Problem::new(Code::KeyTooLong, why).at("key"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_field_is_refused_and_named() {
        let good = br#"{"limit":"l","key":"k","quota":5,"until":"2026-11-22T03:00:00Z"}"#;
        let set = read_set_override(good).unwrap();
        assert_eq!((set.limit.as_str(), set.terms.quota), ("l", Some(5)));
        let misspelt = br#"{"limit":"l","key":"k","quota":5,"untill":"2026-11-22T03:00:00Z"}"#;
        let why = read_set_override(misspelt).unwrap_err().message;
        assert!(why.contains("untill"), "{why}");
        for whom in [
            "",
            r#""key":7,"#,
            r#""key":"k","all_keys":true,"#,
            r#""all_keys":false,"#,
            r#""subject":"8aca0dd300d2","#,
            r#""subject":"8ACA0DD300D25DF0A9B3","#,
            r#""all_keys":true,"#,
        ] {
            let body = format!(r#"{{"limit":"l",{whom}"quota":5}}"#);
            let why = read_set_override(body.as_bytes()).unwrap_err();
            let named = ["`key`", "`all_keys`", "`subject`"];
            let is_named = named.iter().any(|field| why.message.contains(field));
            assert!(is_named && why.code == Code::MalformedEntry, "{whom} {why}");
        }
        let why = read_set_override(br#"{"limit":"l","all_keys":true,"blocked":true}"#);
        let why = why.unwrap_err().message;
        assert!(why.contains("block all keys, set `rate: 0`"), "{why}");
        let why = read_set_override(br#"{"limit":"l","key":"","quota":5}"#).unwrap_err();
        assert_eq!(why.code, Code::EmptyKey);
        assert!(read_remove_override(br#"{"limit":"l","key":"k","quota":5}"#).is_err());
    }

    #[test]
    fn terms_keep_only_what_is_said() {
        let set = SetOverride {
            limit: "l".to_owned(),
            whom: Whom::Key("k".to_owned()),
            terms: OverrideTerms {
                unlimited: true,
                ..OverrideTerms::default()
            },
            force: false,
        };
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(text, r#"{"limit":"l","key":"k","unlimited":true}"#);
        assert_eq!(read_set_override(text.as_bytes()), Ok(set));
        let all = br#"{"limit":"l","all_keys":true,"unlimited":true}"#;
        let whom = read_set_override(all).unwrap().whom;
        assert_eq!(whom, Whom::AllKeys(true));
    }
}
