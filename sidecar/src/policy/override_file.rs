//! A limit's `overrides` in the policy file.

use std::collections::BTreeMap;

use sluicegate_protocol::{OverrideTerms, Whom, check_key};

use super::limits::Limit;
use super::overrides::{Grant, Override};

/// Reads a limit's overrides, by key. Unlike those in the store, they must fit the limit.
///
/// # Errors
/// The entry and the error there, never the key, which may be a secret.
pub(super) fn read(
    limit: &Limit,
    entries: &[OverrideTerms],
) -> Result<BTreeMap<Whom, Override>, (String, String)> {
    let mut overrides = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = |why: String| {
            let why = format!("override {}: {why}", index + 1);
            (format!("overrides[{index}]"), why)
        };
        let missing = || at("`key` is missing: give the key of decisions".to_owned());
        let key = entry.key.clone().ok_or_else(missing)?;
        check_key(&key).map_err(|problem| at(problem.message.into_owned()))?;
        let read = Override::read(entry.clone()).map_err(at)?;
        if let Grant::Quotas(quotas) = &read.grant {
            limit.with_quotas(quotas).map_err(at)?;
        }
        if overrides.insert(Whom::Key(key), read).is_some() {
            return Err(at("`key` occurs twice: remove one of the two".to_owned()));
        }
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use sluicegate_protocol::Whom;

    use crate::policy::{Grant, Policy};
    use crate::test_table::{has_all, rows};

    const GOOD: &str = "
limits:
  l:
    algorithm: sliding_log
    windows: [{ quota: 5, per: 1s }, { quota: 50, per: 1m }]
    overrides:
      - { key: a, windows: [{ quota: 500, per: 1m }], reason: INC-7, by: ann }
      - { key: b, blocked: true, until: 2026-11-22T03:00:00Z }
      - { key: '7', unlimited: true }
";

    #[test]
    fn a_limit_has_overrides_by_key() {
        let policy = Policy::parse(GOOD).unwrap();
        let overrides = &policy.limit("l").unwrap().overrides;
        let [seven, a, b] = ["7", "a", "b"].map(|key| Whom::Key(key.to_owned()));
        assert!(overrides.keys().eq([&seven, &a, &b]));
        assert_eq!(overrides[&seven].grant, Grant::Unlimited);
        assert_eq!(overrides[&a].terms.reason.as_deref(), Some("INC-7"));
        assert_eq!(overrides[&b].until_ms, Some(1_795_316_400_000));
    }

    #[test]
    fn no_key_is_quoted() {
        let table = r"
            key: a, | key: [hunter2], | line 7, `key` is a list
            key: a, | key: !!int hunter2, | line 7, without tags
            key: a, | hunter2: 1, | line 7, this is not a field, `key`
            key: a, | hunter2: 1, hunter2: 2, | line 7, this key is given twice
            { key: '7', unlimited: true } | hunter2 | line 9, `overrides` is a single value
            overrides:\n | overrides: hunter2\n    x:\n | line 6, `overrides` is a single value, - { key: KEY
            overrides:\n | overrides: { hunter2: 1 }\n    x:\n | line 6, `overrides` is a mapping, - { key: KEY
            overrides:\n | overrides:\n      - hunter2\n | line 7, `overrides` is a single value
        ";
        for [from, to, named] in rows(table) {
            let broken = GOOD.replacen(&from, &to, 1);
            assert_ne!(broken, GOOD, "{from}");
            let why = Policy::parse(&broken).unwrap_err();
            has_all(&why, &named);
            assert!(!why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn a_broken_override_is_refused_with_line_field_and_remedy() {
        let table = "
            per: 1m }], | per: 1h }], | line 7, override 1, `1s`, `1m`
            quota: 500 | quota: 0 | line 7, `quota` is 0
            quota: 500 | qouta: 500 | line 7, `quota`
            blocked: true | blocked: true, unlimited: true | line 8, exactly one
            blocked: true | blocked: 1 | line 8, `blocked`, 1
            03:00:00Z | 03:00 | line 8, `until`, RFC 3339
            key: b | key: a | line 8, `key`, twice
            key: b | key: '' | line 8, `key`, empty
            key: b, blocked | blocked | line 8, `key`
        ";
        for [from, to, named] in rows(table) {
            let broken = GOOD.replacen(&from, &to, 1);
            assert_ne!(broken, GOOD, "{from}");
            has_all(&Policy::parse(&broken).unwrap_err(), &named);
        }
    }
}
