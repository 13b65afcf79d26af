//! The query's parameters in every possible reading, decoded once for all rules.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::config::terms::QuerySemicolon;
use crate::edges::{folded, stripped_start};
use crate::path::{byte_of, split_once};

/// Whether upstreams parse a query in different ways.
fn is_ambiguous(query: &[u8]) -> bool {
    query.contains(&b';') || is_broken(query)
}

/// Whether a `%` is not the beginning of an escape.
fn is_broken(text: &[u8]) -> bool {
    let is_escape =
        |after: &[u8]| matches!(after, [high, low, ..] if byte_of(*high, *low).is_some());
    let mut parts = text.split(|byte| *byte == b'%');
    parts.next();
    parts.any(|after| !is_escape(after))
}

/// The parameters that any rule reads: their names, folded and as they are configured.
#[derive(Debug)]
pub(crate) struct ParameterNames(Vec<(Vec<u8>, String)>);

impl ParameterNames {
    pub fn new(names: Vec<String>) -> Self {
        let mut known = Self(Vec::new());
        for name in names {
            let folded: Vec<u8> = folded(stripped_start(name.as_bytes())).collect();
            // In order, and not by sorting, which would make the VM's code larger.
            if let Err(at) = known.find(&folded) {
                known.0.insert(at, (folded, name));
            }
        }
        known
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, name)| name.as_str())
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the parameter that some upstream could read under this name. PHP drops spaces before a name; Rack 2
    /// and Express's `qs` skip brackets around it.
    pub fn number(&self, name: &[u8]) -> Option<usize> {
        let name = stripped_start(name);
        let found = self.find(name).or_else(|place| match name {
            [b'[' | b']', ..] | [.., b']'] => self.find(without_brackets(name)),
            _ => Err(place),
        });
        found.ok()
    }

    /// By length first: that distinguishes most names without comparing their bytes.
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        let length = folded(name).count();
        self.0.binary_search_by(|(known, _)| {
            let order = known.len().cmp(&length);
            order.then_with(|| known.iter().copied().cmp(folded(name)))
        })
    }
}

fn without_brackets(mut name: &[u8]) -> &[u8] {
    while let [b'[' | b']', rest @ ..] | [rest @ .., b']'] = name {
        name = rest;
    }
    name
}

/// The parameters that any rule reads, in order: the number of the name, and the value. All others are left out, so
/// that a rule has few to compare however long the query is.
pub(crate) type QueryParameters<'r> = Vec<(usize, Cow<'r, [u8]>)>;

/// Every reading of a query, each once. A `;` is literal in the URL standard and in Python since 3.9.2, HTML 4 (B.2.2) has it
/// separate parameters, and Go since 1.17 drops the parameter that contains it, like one with a broken escape.
pub(crate) fn readings<'r>(
    query: &'r [u8],
    names: &ParameterNames,
    known: Option<QuerySemicolon>,
) -> Vec<QueryParameters<'r>> {
    let all = [
        QuerySemicolon::Literal,
        QuerySemicolon::Separator,
        QuerySemicolon::Drop,
    ];
    let ways = match &known {
        Some(known) => std::slice::from_ref(known),
        None if is_ambiguous(query) => &all[..],
        None => &[QuerySemicolon::Literal],
    };
    let mut readings = Vec::with_capacity(ways.len());
    for way in ways {
        let reading = read(query, names, *way);
        if !readings.contains(&reading) {
            readings.push(reading);
        }
    }
    readings
}

fn read<'r>(query: &'r [u8], names: &ParameterNames, way: QuerySemicolon) -> QueryParameters<'r> {
    let separates =
        |byte: &u8| *byte == b'&' || (*byte == b';' && way == QuerySemicolon::Separator);
    query
        .split(separates)
        .filter(|pair| !pair.is_empty())
        .filter(|pair| way != QuerySemicolon::Drop || !is_ambiguous(pair))
        .filter_map(|pair| {
            let (name, value) = split_once(pair, b'=');
            let number = names.number(&form_decoded(name))?;
            Some((number, form_decoded(value)))
        })
        .collect()
}

/// Decodes `application/x-www-form-urlencoded`: `+` is a space, `%XX` a byte; incomplete escapes stay unchanged.
fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let space = |byte: &u8| if *byte == b'+' { b' ' } else { *byte };
    let spaced: Vec<u8> = text.iter().map(space).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(query: &str, way: QuerySemicolon) -> Vec<String> {
        let names = ParameterNames::new(vec!["other".to_owned(), "key".to_owned()]);
        read(query.as_bytes(), &names, way)
            .into_iter()
            .filter(|(number, _)| Some(*number) == names.number(b"key"))
            .map(|(_, value)| String::from_utf8_lossy(&value).into_owned())
            .collect()
    }

    #[test]
    fn a_query_parameter_is_found_however_it_is_spelt() {
        let found = |query| found(query, QuerySemicolon::Literal);
        assert_eq!(found("a=1&key=2&&key=3"), ["2", "3"]);
        assert_eq!(found("%6bey=a%2Bb+c"), ["a+b c"]);
        assert_eq!(found("key"), [""]);
        assert_eq!(found("key=%"), ["%"]);
        assert_eq!(found("key=%f"), ["%f"]);
        assert_eq!(found("key=a=b"), ["a=b"]);
        assert_eq!(found("xkey=2&key[]=3&key[a]=4"), [""; 0]);
        // PHP, ASP.NET, Rack 2.
        assert_eq!(found("Key=1&+key=2&key%00=3&[key]=4"), ["1", "2", "3", "4"]);
    }

    /// F6
    #[test]
    fn a_semicolon_is_read_in_each_way() {
        for (query, literal, separator, drop) in [
            ("a=1;key=2", &[][..], &["2"][..], &[][..]),
            ("key=1;a=2", &["1;a=2"], &["1"], &[]),
            ("key=1%3Ba&b;c", &["1;a"], &["1;a"], &["1;a"]),
            ("key=%zz&%=1", &["%zz"], &["%zz"], &[]),
        ] {
            assert_eq!(found(query, QuerySemicolon::Literal), literal, "{query}");
            assert_eq!(
                found(query, QuerySemicolon::Separator),
                separator,
                "{query}"
            );
            assert_eq!(found(query, QuerySemicolon::Drop), drop, "{query}");
        }
        let names = ParameterNames::new(vec!["key".to_owned()]);
        assert_eq!(readings(b"key=1&b;c", &names, None).len(), 1);
        assert_eq!(readings(b"key=1;a=2", &names, None).len(), 3);
        let known = readings(b"key=1;a=2", &names, Some(QuerySemicolon::Drop));
        assert_eq!(known.len(), 1);
    }
}
