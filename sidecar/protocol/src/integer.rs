//! Integers of JSON Schema: `2.0` and `2e0` are 2, as some languages write it.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde_json::Number;

/// Above it, neighbouring whole numbers are the same float.
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

/// For `deserialize_with`.
pub(crate) fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = Number::deserialize(deserializer)?;
    let float = number.as_f64().unwrap_or_default();
    let is_whole = (0.0..MOST_EXACT).contains(&float) && float.fract() == 0.0;
    // Exact, as it is less than that.
    let whole = number.as_u64().or(is_whole.then_some(float as u64));
    let found = number
        .as_i64()
        .map_or(Unexpected::Float(float), Unexpected::Signed);
    // The same word as of a derived `Deserialize`; `field_error.rs` rewrites it.
    whole.ok_or_else(|| D::Error::invalid_type(found, &"u64"))
}

/// For `deserialize_with`; `null` is nothing.
pub(crate) fn optional<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(serde::Deserialize)]
    struct Integer(#[serde(deserialize_with = "required")] u64);
    Ok(Option::deserialize(deserializer)?.map(|Integer(number)| number))
}

/// For `skip_serializing_if`.
pub(crate) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use crate::{OverrideTerms, read_decisions, read_set_override, read_settles};

    /// Found by schemathesis: JSON Schema calls 1.0 an integer.
    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for (number, read_as) in [
            ("5", Some(5)),
            ("5.0", Some(5)),
            ("5e2", Some(500)),
            ("0.0", Some(0)),
            ("5.5", None),
            ("-1.0", None),
            ("1e300", None),
            ("\"5\"", None),
        ] {
            let body = format!(
                r#"{{"decisions":[
                    {{"checks":[{{"limit":"a","key":"k","cost":{number}}}]}},
                    {{"checks":[{{"limit":"a","key":"k","quota":{number}}}]}}
                ]}}"#
            );
            let read = read_decisions(body.as_bytes()).unwrap();
            let check = |index: usize| Some(&read.decisions[index].as_ref().ok()?.checks[0]);
            assert_eq!(check(0).map(|check| check.cost), read_as, "{number}");
            assert_eq!(check(1).and_then(|check| check.quota), read_as, "{number}");
            let body = format!(r#"{{"decisions":[],"denied":[{{"limit":"a","count":{number}}}]}}"#);
            let read = read_decisions(body.as_bytes()).ok();
            assert_eq!(read.map(|read| read.denied[0].count), read_as, "{number}");
            let body = format!(
                r#"{{"settles":[{{"limit":"a","key":"k","receipt":"r","units":{number}}}]}}"#
            );
            let read = &read_settles(body.as_bytes()).unwrap()[0];
            let units = read.as_ref().ok().and_then(|settle| settle.units);
            assert_eq!(units, read_as, "{number}");
            let body = format!(
                r#"{{"limit":"a","key":"k","quota":{number},"burst":{number},
                    "windows":[{{"per":"1m","quota":{number},"burst":{number}}}]}}"#
            );
            let terms = read_set_override(body.as_bytes()).map(|set| set.terms).ok();
            let window = |terms: &OverrideTerms| terms.windows[0].clone();
            for read in [
                terms.as_ref().and_then(|terms| terms.quota),
                terms.as_ref().and_then(|terms| terms.burst),
                terms.as_ref().map(|terms| window(terms).quota),
                terms.as_ref().and_then(|terms| window(terms).burst),
            ] {
                assert_eq!(read, read_as, "{number}");
            }
        }
    }

    #[test]
    fn all_else_is_read_as_before() {
        let body = br#" {"denied":[{"limit":"a","key":null,"count":2,"newer":[{"x":[1]}]}],"decisions":[
            {"checks":[{"limit":"\u0061","key":"k","cost":5},{"key":"k","limit":"b","quota":null}],"peek":true,"shadow":"r"}]} "#;
        let read = read_decisions(body).unwrap();
        let decision = read.decisions[0].as_ref().unwrap();
        let given = (decision.checks[0].limit.as_ref(), decision.checks[0].cost);
        assert_eq!(given, ("a", 5));
        assert_eq!(decision.shadow.as_deref(), Some("r"));
        let given = (read.denied[0].key.as_deref(), read.denied[0].count);
        assert_eq!(given, (None, 2));
        // An entry that cannot be read does not affect the others.
        let body = br#"{"decisions":[{"checks":[{"limit":"a","key":"k"}]},{"checks":7}]}"#;
        let read = read_decisions(body).unwrap();
        assert!(read.decisions[0].is_ok() && read.decisions[1].is_err());
    }
}
