//! The query's parameters, decoded once for all rules, in every reading that the upstream might give them.

use std::borrow::Cow;

use crate::fields::form_decoded;

/// What a `;` in a query does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Semicolon {
    /// It is part of a name or value, as in the URL standard and in Python since 3.9.2.
    Literal,
    /// It separates parameters like `&`, as HTML 4 (B.2.2) recommends.
    Separator,
    /// The parameter that holds it is dropped, as by Go since 1.17.
    Drop,
}

/// The parameters that some rule names, in their order: name and value.
pub(crate) type Parameters<'r> = Vec<(&'r str, Cow<'r, [u8]>)>;

/// Every reading of a query, each once. `names` are those that some rule names, sorted; all others are left out, so that
/// a rule that looks for a parameter has few to compare, however long the query is.
pub(crate) fn readings<'r>(
    query: &'r [u8],
    names: &'r [String],
    known: Option<Semicolon>,
) -> Vec<Parameters<'r>> {
    let all = [Semicolon::Literal, Semicolon::Separator, Semicolon::Drop];
    let ways = match &known {
        Some(known) => std::slice::from_ref(known),
        None if query.contains(&b';') => &all[..],
        None => &[Semicolon::Literal],
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

fn read<'r>(query: &'r [u8], names: &'r [String], way: Semicolon) -> Parameters<'r> {
    let separates = |byte: &u8| *byte == b'&' || (*byte == b';' && way == Semicolon::Separator);
    query
        .split(separates)
        .filter(|pair| !pair.is_empty())
        .filter(|pair| way != Semicolon::Drop || !pair.contains(&b';'))
        .filter_map(|pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let name = form_decoded(parts.next().unwrap_or_default());
            let place = names
                .binary_search_by(|known| known.as_bytes().cmp(&name))
                .ok()?;
            let value = form_decoded(parts.next().unwrap_or_default());
            Some((names.get(place)?.as_str(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(query: &str, way: Semicolon) -> Vec<String> {
        let names = ["key".to_owned(), "other".to_owned()];
        read(query.as_bytes(), &names, way)
            .into_iter()
            .filter(|(name, _)| *name == "key")
            .map(|(_, value)| String::from_utf8_lossy(&value).into_owned())
            .collect()
    }

    #[test]
    fn a_query_parameter_is_found_however_it_is_spelt() {
        let found = |query| found(query, Semicolon::Literal);
        assert_eq!(found("a=1&key=2&&key=3"), ["2", "3"]);
        assert_eq!(found("%6bey=a%2Bb+c"), ["a+b c"]);
        assert_eq!(found("key"), [""]);
        assert_eq!(found("key=%"), ["%"]);
        assert_eq!(found("key=%f"), ["%f"]);
        assert_eq!(found("key=a=b"), ["a=b"]);
        assert_eq!(found("Key=1&xkey=2"), [""; 0]);
    }

    /// F6
    #[test]
    fn a_semicolon_is_read_in_each_way() {
        for (query, literal, separator, drop) in [
            ("a=1;key=2", &[][..], &["2"][..], &[][..]),
            ("key=1;a=2", &["1;a=2"], &["1"], &[]),
            ("key=1%3Ba&b;c", &["1;a"], &["1;a"], &["1;a"]),
        ] {
            assert_eq!(found(query, Semicolon::Literal), literal, "{query}");
            assert_eq!(found(query, Semicolon::Separator), separator, "{query}");
            assert_eq!(found(query, Semicolon::Drop), drop, "{query}");
        }
        let names = ["key".to_owned()];
        assert_eq!(readings(b"key=1&b;c", &names, None).len(), 1);
        assert_eq!(readings(b"key=1;a=2", &names, None).len(), 3);
        assert_eq!(
            readings(b"key=1;a=2", &names, Some(Semicolon::Drop)).len(),
            1
        );
    }
}
