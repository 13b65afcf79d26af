//! JSON Schemas of the policy's two forms: which fields there are, and what to give for each.

use serde_json::Value;

/// The fields of this part of a schema, and what it says about them.
pub(super) fn fields_of<'s>(
    schema: &'s Value,
    part: &str,
) -> impl Iterator<Item = (&'s str, &'s Value)> {
    let fields = schema.pointer(&format!("{part}/properties"));
    let fields = fields.and_then(Value::as_object).into_iter().flatten();
    fields.map(|(name, schema)| (name.as_str(), schema))
}

/// What a schema says about a field of this part.
pub(super) fn said<'s>(schema: &'s Value, part: &str, field: &str, what: &str) -> Option<&'s str> {
    let mut fields = fields_of(schema, part);
    fields.find_map(|(name, schema)| (name == field).then(|| schema.get(what)?.as_str())?)
}

/// What to give for a field.
pub(super) fn takes<'s>(schema: &'s Value, field: &str) -> &'s str {
    described(schema, field).unwrap_or("a mapping")
}

/// The description of a field, wherever it is.
pub(super) fn described<'s>(schema: &'s Value, field: &str) -> Option<&'s str> {
    let parts = schema.get("$defs").and_then(Value::as_object);
    // The policy's own first, then those of its files' parts before those of rules: both have a `from`. Those of a limit's window
    // before those of an override's.
    let parts = || parts.into_iter().flatten().rev();
    let of_files = parts().filter(|(name, _)| name.ends_with("File"));
    let pointer = format!("/properties/{field}/description");
    let all = of_files.chain(parts()).map(|(_, part)| part);
    let mut all = [schema].into_iter().chain(all);
    all.find_map(|part| part.pointer(&pointer)?.as_str())
}
