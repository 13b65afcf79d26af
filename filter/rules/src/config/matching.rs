//! Compiles a rule's `match`.

use std::rc::Rc;

use regex_lite::Regex;

use super::error::{ConfigError, invalid};
use super::expressions;
use super::fields::Fields;
use super::key_components::{header_name, place};
use super::values::not_empty;
use crate::matcher::{Condition, Host, Matcher, OnPath};
use crate::template::{Template, unambiguous};

/// Nesting of `all`, `any` and `not`.
const MAX_DEPTH: usize = 8;

/// The matcher, and the names of its template variables.
pub(super) fn compile(file: Option<Fields>) -> Result<(Matcher, Vec<String>), ConfigError> {
    let mut variables = Vec::new();
    let matcher = match file {
        None => Matcher::All(Vec::new()),
        Some(file) => compile_match(file, MAX_DEPTH, &mut variables)?,
    };
    Ok((matcher, variables))
}

fn compile_match(
    mut file: Fields,
    depth: usize,
    variables: &mut Vec<String>,
) -> Result<Matcher, ConfigError> {
    let Some(depth) = depth.checked_sub(1) else {
        return invalid(
            &file.at,
            format_args!("is more than {MAX_DEPTH} levels deep"),
        );
    };
    let mut all = Vec::new();
    if let Some(path) = file.text("path")? {
        all.push(Matcher::OnPath(OnPath::Exact(literal(
            &file.at("path"),
            path,
        )?)));
    }
    if let Some(prefix) = file.text("path_prefix")? {
        let prefix = literal(&file.at("path_prefix"), prefix)?;
        all.push(Matcher::OnPath(OnPath::Prefix(prefix)));
    }
    if let Some(text) = file.text("path_template")? {
        let template = template(&file.at("path_template"), &text)?;
        variables.extend(template.names().map(str::to_owned));
        all.push(Matcher::OnPath(OnPath::Template(template)));
    }
    if let Some(text) = file.text("path_regex")? {
        let regex = regex(&file.at("path_regex"), &text)?;
        all.push(Matcher::OnPath(OnPath::Regex(regex)));
    }
    let methods = methods(&mut file)?;
    if !methods.is_empty() {
        all.push(Matcher::Methods(methods));
    }
    let mut hosts = Vec::new();
    for (at, text) in file.texts("hosts")? {
        hosts.push(host(&at, &text)?);
    }
    if !hosts.is_empty() {
        all.push(Matcher::Hosts(hosts));
    }
    for mut entry in file.objects("headers")? {
        let name = entry.text("name")?;
        let name = header_name(&entry.at("name"), &entry.needs("name", name)?)?;
        all.push(Matcher::Header(name, condition(entry)?));
    }
    for mut entry in file.objects("query")? {
        let name = entry.text("name")?;
        let name = not_empty(&entry.at("name"), entry.needs("name", name)?)?;
        all.push(Matcher::Query(name, condition(entry)?));
    }
    for mut entry in file.objects("metadata")? {
        let place = place(&mut entry)?;
        all.push(Matcher::Metadata(place, condition(entry)?));
    }
    for inner in file.objects("all")? {
        all.push(compile_match(inner, depth, variables)?);
    }
    let mut any = Vec::new();
    for inner in file.objects("any")? {
        any.push(compile_match(inner, depth, variables)?);
    }
    if !any.is_empty() {
        all.push(Matcher::Any(any));
    }
    if let Some(inner) = file.inner("not")? {
        let at = inner.at.clone();
        // Variables under `not` have no value.
        let inner = compile_match(inner, depth, &mut Vec::new())?;
        if matches!(&inner, Matcher::All(all) if all.is_empty()) {
            let why = "is empty, which matches every request, so the rule would match none";
            return invalid(&at, why);
        }
        all.push(Matcher::Not(Box::new(inner)));
    }
    file.end()?;
    Ok(Matcher::All(all))
}

fn literal(at: &str, path: String) -> Result<String, ConfigError> {
    if !path.starts_with('/') {
        return invalid(at, format_args!("`{path}` does not begin with `/`"));
    }
    unambiguous(&path).or_else(|why| invalid(at, format_args!("`{path}`: {why}")))?;
    Ok(path)
}

pub(super) fn template(at: &str, text: &str) -> Result<Template, ConfigError> {
    Template::parse(text).or_else(|why| invalid(at, why))
}

/// Only looks it up: one line must not compile several.
fn regex(at: &str, text: &str) -> Result<Rc<Regex>, ConfigError> {
    let why = format_args!("no line before it has the expression `{text}`");
    expressions::known(text).map_or_else(|| invalid(at, why), Ok)
}

pub(super) fn methods(file: &mut Fields) -> Result<Vec<String>, ConfigError> {
    let mut methods = Vec::new();
    for (at, method) in file.texts("methods")? {
        let capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
        if method.is_empty() || !method.bytes().all(capital) {
            let why = format_args!("`{method}` is not a method in capitals such as `GET`");
            return invalid(&at, why);
        }
        methods.push(method);
    }
    Ok(methods)
}

fn host(at: &str, text: &str) -> Result<Host, ConfigError> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let port = !name.starts_with('[') && name.contains(':');
    if name.is_empty() || port || name.contains(['/', '*', ' ', '@']) || name.ends_with('.') {
        return invalid(
            at,
            format_args!(
                "`{text}` is not a host such as `api.example.com` or `*.example.com`, without port or scheme"
            ),
        );
    }
    let name = name.to_ascii_lowercase();
    Ok(if text.starts_with("*.") {
        Host::SubdomainOf(format!(".{name}"))
    } else {
        Host::Exact(name)
    })
}

fn condition(mut file: Fields) -> Result<Condition, ConfigError> {
    let (present, equals) = (file.flag("present")?, file.text("equals")?);
    let (prefix, expression) = (file.text("prefix")?, file.text("regex")?);
    file.end()?;
    match (present, equals, prefix, expression) {
        (Some(true), None, None, None) => Ok(Condition::Present),
        (Some(false), None, None, None) => Ok(Condition::Absent),
        (None, Some(text), None, None) => Ok(Condition::Equals(text)),
        (None, None, Some(text), None) => Ok(Condition::Prefix(text)),
        (None, None, None, Some(text)) => regex(&file.at("regex"), &text).map(Condition::Regex),
        _ => invalid(
            &file.at,
            "needs exactly one of `present`, `equals`, `prefix` and `regex`",
        ),
    }
}
