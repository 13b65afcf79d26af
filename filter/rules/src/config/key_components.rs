//! Compiles key components.

use serde_json::Value;

use super::error::{ConfigError, invalid};
use super::fields::{Fields, entries, texts};
use super::terms::Address;
use super::values::not_empty;
use crate::claims::{Claim, JWT_AUTHN};
use crate::key::{self, escaped};
use crate::key_component::{ComponentSource, KeyComponent};

/// A component has exactly one source. Each source determines the component's name in a key, and whether its value is
/// hashed by default.
pub(super) fn compile(mut file: Fields, variables: &[String]) -> Result<KeyComponent, ConfigError> {
    let mut found: Vec<(ComponentSource, String, bool)> = Vec::new();
    if let Some(name) = file.text("header")? {
        let name = header_name(&file.at("header"), &name)?;
        let called = escaped(&name);
        found.push((ComponentSource::Header(name), called, true));
    }
    if let Some(name) = file.text("cookie")? {
        let name = not_empty(&file.at("cookie"), name)?;
        let called = key::name("@cookie", [name.as_str()]);
        found.push((ComponentSource::Cookie(name), called, true));
    }
    if let Some(name) = file.text("query")? {
        let name = not_empty(&file.at("query"), name)?;
        let called = key::name("@query", [name.as_str()]);
        found.push((ComponentSource::Query(name), called, true));
    }
    if let Some(name) = file.text("template")? {
        let called = key::name("@template", [name.as_str()]);
        let source = variable(&file.at("template"), name, variables)?;
        found.push((source, called, false));
    }
    for (field, source) in [
        ("path", ComponentSource::Path),
        ("method", ComponentSource::Method),
        ("host", ComponentSource::Host),
    ] {
        match file.flag(field)? {
            None => {}
            Some(true) => found.push((source, format!("@{field}"), false)),
            Some(false) => {
                let why = "is `false`: set it to `true`, or leave it out";
                return invalid(&file.at(field), why);
            }
        }
    }
    if let Some(inner) = file.inner("address")? {
        let source = ComponentSource::Address(address(inner)?);
        found.push((source, "@address".to_owned(), false));
    }
    if let Some(inner) = file.inner("jwt")? {
        let claim = claim(inner)?;
        let name = key::name("@jwt", claim.path.iter().map(String::as_str));
        found.push((ComponentSource::Claim(claim), name, true));
    }
    if let Some(inner) = file.inner("metadata")? {
        let value = metadata(inner)?;
        let pieces = std::iter::once(&value.namespace).chain(&value.path);
        let name = key::name("@metadata", pieces.map(String::as_str));
        found.push((ComponentSource::Claim(value), name, true));
    }
    let names = ["spiffe", "uri_san", "dns_san", "subject"];
    if let Some(which) = file.word("mtls", &names)? {
        let (attribute, prefix) = match which {
            0 => ("uri_san_peer_certificate", "spiffe://"),
            1 => ("uri_san_peer_certificate", ""),
            2 => ("dns_san_peer_certificate", ""),
            _ => ("subject_peer_certificate", ""),
        };
        let path = vec!["connection".to_owned(), attribute.to_owned()];
        let name = names.get(which).copied().unwrap_or_default();
        let source = ComponentSource::Attribute { path, prefix };
        found.push((source, format!("@mtls/{name}"), false));
    }
    if let Some(names) = file.take("attribute") {
        let path = attribute(&file.at("attribute"), names)?;
        let name = key::name("@attribute", path.iter().map(String::as_str));
        let source = ComponentSource::Attribute { path, prefix: "" };
        found.push((source, name, true));
    }
    if let Some(text) = file.text("constant")? {
        let text = not_empty(&file.at("constant"), text)?;
        let source = ComponentSource::Constant(text);
        found.push((source, "@constant".to_owned(), false));
    }
    let sources = found.len();
    let Some((source, name, hashed)) = found.pop().filter(|_| sources == 1) else {
        let why = format_args!(
            "has {sources} sources: give exactly one of `header`, `cookie`, `query`, `path`, `template`, `method`, `host`, `address`, `jwt`, `metadata`, `mtls`, `attribute` and `constant`"
        );
        return invalid(&file.at, why);
    };
    let plain = file.flag("plain")?.unwrap_or_default();
    if plain && !hashed {
        let why = "applies to `header`, `cookie`, `query`, `jwt`, `metadata` and `attribute` only: all other components are plain anyway";
        return invalid(&file.at("plain"), why);
    }
    let claimed = matches!(
        source,
        ComponentSource::Header(_) | ComponentSource::Cookie(_) | ComponentSource::Query(_)
    );
    if file.flag("trusted")? == Some(true) && !claimed {
        let why = "applies to `header`, `cookie` and `query` only, which clients write";
        return invalid(&file.at("trusted"), why);
    }
    file.end()?;
    let hashed = hashed && !plain;
    Ok(KeyComponent {
        source,
        name,
        hashed,
    })
}

fn variable(at: &str, name: String, variables: &[String]) -> Result<ComponentSource, ConfigError> {
    if variables.contains(&name) {
        return Ok(ComponentSource::Variable(name));
    }
    let known = if variables.is_empty() {
        "it has no `path_template` with variables".to_owned()
    } else {
        format!("it has `{}`", variables.join("`, `"))
    };
    invalid(
        at,
        format_args!("`{name}` is not a variable of the rule's `match`: {known}"),
    )
}

pub(super) fn address(mut file: Fields) -> Result<Address, ConfigError> {
    let trusted_hops = file.number("trusted_hops")?;
    if trusted_hops == Some(0) {
        let why = "0 trusts no proxy: leave it out to use the peer's address";
        return invalid(&file.at("trusted_hops"), why);
    }
    let mut address = Address {
        trusted_hops: trusted_hops.map(|hops| usize::try_from(hops).unwrap_or(usize::MAX)),
        ..Address::default()
    };
    for (field, bits, most) in [
        ("ipv4_bits", &mut address.ipv4_bits, 32),
        ("ipv6_bits", &mut address.ipv6_bits, 128),
    ] {
        let Some(given) = file.number(field)? else {
            continue;
        };
        match u8::try_from(given) {
            Ok(given) if given <= most => *bits = given,
            _ => {
                let why = format_args!("{given} is more than the {most} bits of an address");
                return invalid(&file.at(field), why);
            }
        }
    }
    file.end()?;
    Ok(address)
}

fn claim(mut file: Fields) -> Result<Claim, ConfigError> {
    let payload = file.text("payload")?;
    let payload = file.needs("payload", payload)?;
    let mut path = vec![not_empty(&file.at("payload"), payload)?];
    path.extend(names(&mut file, "claim")?);
    file.end()?;
    Ok(Claim {
        namespace: JWT_AUTHN.to_owned(),
        path,
    })
}

pub(super) fn metadata(mut file: Fields) -> Result<Claim, ConfigError> {
    let claim = place(&mut file)?;
    file.end()?;
    Ok(claim)
}

/// A place in the metadata.
pub(super) fn place(file: &mut Fields) -> Result<Claim, ConfigError> {
    let namespace = file.text("namespace")?;
    let namespace = file.needs("namespace", namespace)?;
    Ok(Claim {
        namespace: not_empty(&file.at("namespace"), namespace)?,
        path: names(file, "name")?,
    })
}

/// A name, or a list of names that lead to a value.
fn names(file: &mut Fields, field: &str) -> Result<Vec<String>, ConfigError> {
    let (names, at) = (file.take(field), file.at(field));
    let path = list_of(&at, file.needs(field, names)?, |name| vec![name])?;
    if path.is_empty() || path.iter().any(String::is_empty) {
        return invalid(&at, "is empty, or one of its names is");
    }
    Ok(path)
}

fn list_of(
    at: &str,
    names: Value,
    of_one: fn(String) -> Vec<String>,
) -> Result<Vec<String>, ConfigError> {
    if let Value::String(name) = names {
        return Ok(of_one(name));
    }
    let names = texts(entries(at, names)?)?;
    Ok(names.into_iter().map(|(_, name)| name).collect())
}

/// Where a quota comes from.
pub(super) fn trusted_source(mut file: Fields) -> Result<Claim, ConfigError> {
    let sources = (file.inner("jwt")?, file.inner("metadata")?);
    file.end()?;
    match sources {
        (Some(jwt), None) => claim(jwt),
        (None, Some(value)) => metadata(value),
        _ => invalid(&file.at, "give exactly one of `jwt` and `metadata`"),
    }
}

fn attribute(at: &str, names: Value) -> Result<Vec<String>, ConfigError> {
    let path = list_of(at, names, |name| {
        name.split('.').map(str::to_owned).collect()
    })?;
    // The ABI separates names by zero bytes.
    let bad = |name: &String| name.is_empty() || name.contains('\0');
    if path.is_empty() || path.iter().any(bad) {
        let why = "is not a name such as `connection.requested_server_name`";
        return invalid(at, why);
    }
    Ok(path)
}

/// Header names are compared in lower case, as Envoy stores them.
pub(super) fn header_name(at: &str, name: &str) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let pseudo = matches!(
        name,
        ":authority" | ":method" | ":path" | ":scheme" | ":protocol"
    );
    if !pseudo && (name.is_empty() || !name.bytes().all(token)) {
        return invalid(at, format_args!("`{name}` is not the name of a header"));
    }
    Ok(name.to_ascii_lowercase())
}
