//! Validates a rule's `match`.

use std::rc::Rc;

use regex_lite::Regex;

use super::error::{ConfigError, invalid};
use super::expressions;
use super::key_components::header_name;
use super::schema;
use super::values::{each, not_empty};
use crate::matcher::{Condition, Host, Matcher, OnPath};
use crate::template::{Template, unambiguous};

/// Nesting of `all`, `any` and `not`.
const MAX_DEPTH: usize = 8;

/// The matcher, and the names of its template variables.
pub(super) fn validate(
    at: &str,
    file: &schema::Match,
) -> Result<(Matcher, Vec<String>), ConfigError> {
    let mut variables = Vec::new();
    let matcher = validate_match(at, file, MAX_DEPTH, &mut variables)?;
    Ok((matcher, variables))
}

fn validate_match(
    at: &str,
    file: &schema::Match,
    depth: usize,
    variables: &mut Vec<String>,
) -> Result<Matcher, ConfigError> {
    let Some(depth) = depth.checked_sub(1) else {
        return invalid(at, format_args!("is more than {MAX_DEPTH} levels deep"));
    };
    let mut all = Vec::new();
    if let Some(path) = &file.path {
        all.push(Matcher::OnPath(OnPath::Exact(literal(
            &format!("{at}.path"),
            path,
        )?)));
    }
    if let Some(prefix) = &file.path_prefix {
        let at = format!("{at}.path_prefix");
        all.push(Matcher::OnPath(OnPath::Prefix(literal(&at, prefix)?)));
    }
    if let Some(text) = &file.path_template {
        let template = template(&format!("{at}.path_template"), text)?;
        variables.extend(template.names().map(str::to_owned));
        all.push(Matcher::OnPath(OnPath::Template(template)));
    }
    if let Some(text) = &file.path_regex {
        let regex = regex(&format!("{at}.path_regex"), text)?;
        all.push(Matcher::OnPath(OnPath::Regex(regex)));
    }
    if !file.methods.is_empty() {
        let methods = methods(&format!("{at}.methods"), &file.methods)?;
        all.push(Matcher::Methods(methods));
    }
    if !file.hosts.is_empty() {
        all.push(Matcher::Hosts(each(
            &format!("{at}.hosts"),
            &file.hosts,
            |at, text| host(at, text),
        )?));
    }
    all.extend(each(
        &format!("{at}.headers"),
        &file.headers,
        |at, entry| {
            let name = header_name(&format!("{at}.name"), &entry.name)?;
            Ok(Matcher::Header(name, condition(at, entry)?))
        },
    )?);
    all.extend(each(&format!("{at}.query"), &file.query, |at, entry| {
        let name = not_empty(&format!("{at}.name"), &entry.name)?.to_owned();
        Ok(Matcher::Query(name, condition(at, entry)?))
    })?);
    let mut inner = |at: &str, inner: &schema::Match| validate_match(at, inner, depth, variables);
    all.extend(each(&format!("{at}.all"), &file.all, &mut inner)?);
    if !file.any.is_empty() {
        let any = each(&format!("{at}.any"), &file.any, &mut inner)?;
        all.push(Matcher::Any(any));
    }
    if let Some(inner) = &file.not {
        // Variables under `not` have no value.
        let inner = validate_match(&format!("{at}.not"), inner, depth, &mut Vec::new())?;
        if matches!(&inner, Matcher::All(all) if all.is_empty()) {
            let why = "is empty, which matches every request, so the rule would match none";
            return invalid(&format!("{at}.not"), why);
        }
        all.push(Matcher::Not(Box::new(inner)));
    }
    Ok(Matcher::All(all))
}

fn literal(at: &str, path: &str) -> Result<String, ConfigError> {
    if !path.starts_with('/') {
        return invalid(at, format_args!("`{path}` does not begin with `/`"));
    }
    unambiguous(path).or_else(|why| invalid(at, format_args!("`{path}`: {why}")))?;
    Ok(path.to_owned())
}

pub(super) fn template(at: &str, text: &str) -> Result<Template, ConfigError> {
    Template::parse(text).or_else(|why| invalid(at, why))
}

fn regex(at: &str, text: &str) -> Result<Rc<Regex>, ConfigError> {
    expressions::whole(text).or_else(|error| invalid(at, format_args!("`{text}`: {error}")))
}

pub(super) fn methods(at: &str, names: &[String]) -> Result<Vec<String>, ConfigError> {
    each(at, names, |at, method| {
        let capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
        if method.is_empty() || !method.bytes().all(capital) {
            let why = format_args!("`{method}` is not a method in capitals such as `GET`");
            return invalid(at, why);
        }
        Ok(method.clone())
    })
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

fn condition(at: &str, file: &schema::Condition) -> Result<Condition, ConfigError> {
    match (&file.present, &file.equals, &file.prefix, &file.regex) {
        (Some(true), None, None, None) => Ok(Condition::Present),
        (Some(false), None, None, None) => Ok(Condition::Absent),
        (None, Some(text), None, None) => Ok(Condition::Equals(text.clone())),
        (None, None, Some(text), None) => Ok(Condition::Prefix(text.clone())),
        (None, None, None, Some(text)) => regex(&format!("{at}.regex"), text).map(Condition::Regex),
        _ => invalid(
            at,
            "needs exactly one of `present`, `equals`, `prefix` and `regex`",
        ),
    }
}
