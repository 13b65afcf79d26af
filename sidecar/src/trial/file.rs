//! The file of `sluicegate test`: requests in a table, and what becomes of them. docs/test.md describes it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use sluicegate_rules::config::from_value;
use sluicegate_rules::{JWT_AUTHN, metadata_of};

use super::{DescribedRequest, Outcome, Verdict};
use crate::clock::micros;
use crate::policy::duration;
use crate::yaml::{self, ValueWithLines};

/// Where tests begin unless they say so: a Monday, and the first day of a month.
const START: &str = "2026-06-01T00:00:00Z";
/// The client's address, from a block for examples.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A file of tests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tests {
    /// As the file names it.
    pub policy: PathBuf,
    /// Likewise.
    pub pepper_file: Option<PathBuf>,
    /// The rule set, if it is not the default.
    pub set: Option<String>,
    /// The `payload_in_metadata` of the provider in `jwt_authn`, if it is not `jwt`.
    jwt_payload: Option<String>,
    /// In their order.
    pub tests: Vec<Test>,
}

/// Requests that follow each other, to a store that is empty at first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// For people.
    pub name: String,
    start: Option<String>,
    /// The fields of all rows that have no own.
    #[serde(default)]
    each: Map<String, Value>,
    requests: Vec<Map<String, Value>>,
    /// What `each` and `requests` say.
    #[serde(skip)]
    pub rows: Vec<Row>,
}

/// A request, how often it comes, and what has to become of it. Times are in microseconds since 1970.
#[derive(Debug)]
pub struct Row {
    /// In the file.
    pub line: usize,
    /// When it comes.
    pub at_us: u64,
    /// How often.
    pub times: u64,
    /// The request itself.
    pub request: DescribedRequest,
    /// What has to become of it.
    pub expected: Outcome,
    /// Method and path, and the time, as they are written.
    pub name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RowFile {
    at: Option<Length>,
    times: Option<NonZeroU64>,
    request: String,
    headers: BTreeMap<String, Texts>,
    address: Option<IpAddr>,
    claims: Value,
    metadata: BTreeMap<String, Map<String, Value>>,
    attributes: BTreeMap<String, String>,
    expect: Option<Verdict>,
    by: Option<String>,
    retry_after: Option<RetryAfter>,
}

/// A text, or several where a header is repeated.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct Texts(Vec<String>);

impl TryFrom<Value> for Texts {
    type Error = &'static str;
    fn try_from(given: Value) -> Result<Self, Self::Error> {
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
            _ => Err("give a text, or a list of texts where the header is repeated"),
        };
        let list = given
            .as_array()
            .map_or(slice::from_ref(&given), Vec::as_slice);
        list.iter().map(text).collect::<Result<_, _>>().map(Self)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct Length(Duration);

impl TryFrom<Value> for Length {
    type Error = String;
    fn try_from(given: Value) -> Result<Self, String> {
        match given.as_str() {
            Some("0s") => Ok(Self(Duration::ZERO)),
            Some(text) => duration(text).map(Self),
            None => Err(format!("{given} is no duration: give one such as `2s`")),
        }
    }
}

/// `None`: a reply without the field.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct RetryAfter(Option<Duration>);

impl TryFrom<Value> for RetryAfter {
    type Error = String;
    fn try_from(given: Value) -> Result<Self, String> {
        match given.as_str() {
            Some("none") => Ok(Self(None)),
            _ => Length::try_from(given).map(|length| Self(Some(length.0))),
        }
    }
}

impl Tests {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first mistake: its line, the field and the remedy.
    pub fn read(text: &str) -> Result<Self, (usize, String)> {
        let documents = yaml::load(text).map_err(|why| (1, format!("the file {why}")))?;
        let [document] = documents.as_slice() else {
            return Err((1, "give one YAML document".to_owned()));
        };
        let lines = ValueWithLines::new(document, 0);
        let at = |field: &str, why: &str| {
            // Of what lacks a field, or is no mapping.
            let field = field
                .trim_end_matches("configuration")
                .trim_end_matches('.');
            let of_field = if field.is_empty() {
                String::new()
            } else {
                format!("`{field}`: ")
            };
            (lines.line(field), of_field + why)
        };
        let file = from_value(&lines.value);
        let mut file: Self = file.map_err(|error| at(&error.field, &error.why))?;
        if file.tests.is_empty() {
            return Err(at("tests", "give at least one"));
        }
        let payload = file.jwt_payload.as_deref().unwrap_or("jwt");
        for (number, test) in file.tests.iter_mut().enumerate() {
            let place = format!("tests[{number}]");
            let start = test.start.as_deref().unwrap_or(START).parse();
            let start = start.map_or(0, jiff::Timestamp::as_microsecond);
            let mut now_us = u64::try_from(start).unwrap_or(0);
            if now_us == 0 {
                let why = format!("give a time such as `{START}`");
                return Err(at(&format!("{place}.start"), &why));
            }
            let start_us = now_us;
            for (row, own) in test.requests.iter().enumerate() {
                let place = format!("{place}.requests[{row}]");
                let mut fields = test.each.clone();
                fields.extend(own.clone());
                let at = |field: &str, why: &str| at(&format!("{place}.{field}"), why);
                let row = from_value(&fields.into());
                let row: RowFile = row.map_err(|error| at(&error.field, &error.why))?;
                let row = row.read(lines.line(&place), start_us, now_us, payload);
                let row = row.map_err(|(field, why)| at(field, &why))?;
                now_us = row.at_us;
                test.rows.push(row);
            }
            if test.rows.is_empty() {
                return Err(at(&format!("{place}.requests"), "give at least one"));
            }
        }
        Ok(file)
    }
}

impl RowFile {
    /// The row in this line, of a test that starts then, after one at that time.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    fn read(
        self,
        line: usize,
        start_us: u64,
        before_us: u64,
        payload: &str,
    ) -> Result<Row, (&'static str, String)> {
        let at_us = self.at.map_or(before_us, |at| start_us + micros(at.0));
        if at_us < before_us {
            let why = "this is before the row above: put rows in the order of time";
            return Err(("at", why.to_owned()));
        }
        let expected = "give `admitted`, `denied`, `unlimited` or `refused`".to_owned();
        let verdict = self.expect.ok_or(("expect", expected))?;
        let headers = self.headers.iter();
        let headers =
            headers.flat_map(|(name, texts)| texts.0.iter().map(move |text| (&**name, &**text)));
        let request =
            DescribedRequest::new(&self.request, headers, self.address.unwrap_or(ADDRESS));
        let mut request = request.map_err(|why| ("request", why))?;
        let mut metadata = self.metadata;
        if !self.claims.is_null() {
            let of_token = metadata.entry(JWT_AUTHN.to_owned()).or_default();
            of_token.insert(payload.to_owned(), self.claims);
        }
        let given = self.attributes.into_iter();
        let given = given.map(|(name, value)| (name, value.into_bytes()));
        request.attributes.extend(given);
        let metadata = metadata_of(metadata.iter().map(|(name, fields)| (&**name, fields)));
        request.attributes.insert("metadata".to_owned(), metadata);
        let at = Duration::from_micros(at_us - start_us);
        Ok(Row {
            line,
            at_us,
            times: self.times.map_or(1, NonZeroU64::get),
            name: format!("`{}` at {}", self.request, humantime::format_duration(at)),
            request,
            expected: Outcome {
                verdict,
                by: self.by,
                retry_after: self.retry_after.map(|field| field.0),
            },
        })
    }
}
