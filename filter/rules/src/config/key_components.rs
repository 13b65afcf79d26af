//! Validates key components.

use super::error::{ConfigError, invalid};
use super::schema;
use super::values::not_empty;
use crate::claims::{Claim, JWT_AUTHN};
use crate::key::{self, escaped};
use crate::key_component::{ComponentSource, KeyComponent};

/// A component has exactly one source. Each source determines the component's name in a key, and whether its value is
/// hashed by default.
pub(super) fn validate(
    at: &str,
    file: &schema::KeyComponent,
    variables: &[String],
) -> Result<KeyComponent, ConfigError> {
    let mut found: Vec<(ComponentSource, String, bool)> = Vec::new();
    if let Some(name) = &file.header {
        let name = header_name(&format!("{at}.header"), name)?;
        let called = escaped(&name);
        found.push((ComponentSource::Header(name), called, true));
    }
    if let Some(name) = &file.cookie {
        let name = not_empty(&format!("{at}.cookie"), name)?.to_owned();
        let called = key::name("@cookie", [name.as_str()]);
        found.push((ComponentSource::Cookie(name), called, true));
    }
    if let Some(name) = &file.query {
        let name = not_empty(&format!("{at}.query"), name)?.to_owned();
        let called = key::name("@query", [name.as_str()]);
        found.push((ComponentSource::Query(name), called, true));
    }
    if let Some(name) = &file.template {
        let source = variable(&format!("{at}.template"), name, variables)?;
        found.push((source, key::name("@template", [name.as_str()]), false));
    }
    for (field, source, flag) in [
        ("path", ComponentSource::Path, file.path),
        ("method", ComponentSource::Method, file.method),
        ("host", ComponentSource::Host, file.host),
    ] {
        match flag {
            None => {}
            Some(true) => found.push((source, format!("@{field}"), false)),
            Some(false) => {
                let why = "is `false`: set it to `true`, or leave it out";
                return invalid(&format!("{at}.{field}"), why);
            }
        }
    }
    if let Some(file) = &file.address {
        let source = address(&format!("{at}.address"), file)?;
        found.push((source, "@address".to_owned(), false));
    }
    if let Some(file) = &file.jwt {
        let claim = claim(&format!("{at}.jwt"), file)?;
        let name = key::name("@jwt", claim.path.iter().map(String::as_str));
        found.push((ComponentSource::Claim(claim), name, true));
    }
    if let Some(file) = &file.metadata {
        let value = metadata(&format!("{at}.metadata"), file)?;
        let pieces = std::iter::once(&value.namespace).chain(&value.path);
        let name = key::name("@metadata", pieces.map(String::as_str));
        found.push((ComponentSource::Claim(value), name, true));
    }
    if let Some(which) = file.mtls {
        let (attribute, prefix, name) = match which {
            schema::Mtls::Spiffe => ("uri_san_peer_certificate", "spiffe://", "spiffe"),
            schema::Mtls::UriSan => ("uri_san_peer_certificate", "", "uri_san"),
            schema::Mtls::DnsSan => ("dns_san_peer_certificate", "", "dns_san"),
            schema::Mtls::Subject => ("subject_peer_certificate", "", "subject"),
        };
        let path = vec!["connection".to_owned(), attribute.to_owned()];
        let source = ComponentSource::Attribute { path, prefix };
        found.push((source, format!("@mtls/{name}"), false));
    }
    if let Some(names) = &file.attribute {
        let path = attribute(&format!("{at}.attribute"), names)?;
        let name = key::name("@attribute", path.iter().map(String::as_str));
        let source = ComponentSource::Attribute { path, prefix: "" };
        found.push((source, name, true));
    }
    if let Some(text) = &file.constant {
        let text = not_empty(&format!("{at}.constant"), text)?.to_owned();
        found.push((
            ComponentSource::Constant(text),
            "@constant".to_owned(),
            false,
        ));
    }
    let sources = found.len();
    let Some((source, name, hashed)) = found.pop().filter(|_| sources == 1) else {
        return invalid(
            at,
            format_args!(
                "has {sources} sources: give exactly one of `header`, `cookie`, `query`, `path`, `template`, `method`, `host`, `address`, `jwt`, `metadata`, `mtls`, `attribute` and `constant`"
            ),
        );
    };
    if file.plain && !hashed {
        let why = "applies to `header`, `cookie`, `query`, `jwt`, `metadata` and `attribute` only: all other components are plain anyway";
        return invalid(&format!("{at}.plain"), why);
    }
    let claimed = matches!(
        source,
        ComponentSource::Header(_) | ComponentSource::Cookie(_) | ComponentSource::Query(_)
    );
    if file.trusted && !claimed {
        let why = "applies to `header`, `cookie` and `query` only, which clients write";
        return invalid(&format!("{at}.trusted"), why);
    }
    Ok(KeyComponent {
        source,
        name,
        hashed: hashed && !file.plain,
    })
}

fn variable(at: &str, name: &str, variables: &[String]) -> Result<ComponentSource, ConfigError> {
    if variables.iter().any(|variable| variable == name) {
        return Ok(ComponentSource::Variable(name.to_owned()));
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

pub(super) fn address(at: &str, file: &schema::Address) -> Result<ComponentSource, ConfigError> {
    if file.trusted_hops == Some(0) {
        let why = "0 trusts no proxy: leave it out to use the peer's address";
        return invalid(&format!("{at}.trusted_hops"), why);
    }
    for (field, bits, most) in [
        ("ipv4_bits", file.ipv4_bits, 32),
        ("ipv6_bits", file.ipv6_bits, 128),
    ] {
        if bits > most {
            return invalid(
                &format!("{at}.{field}"),
                format_args!("{bits} is more than the {most} bits of an address"),
            );
        }
    }
    Ok(ComponentSource::Address(file.clone()))
}

fn claim(at: &str, file: &schema::Jwt) -> Result<Claim, ConfigError> {
    let mut path = vec![not_empty(&format!("{at}.payload"), &file.payload)?.to_owned()];
    path.extend(names(&format!("{at}.claim"), &file.claim)?);
    Ok(Claim {
        namespace: JWT_AUTHN.to_owned(),
        path,
    })
}

pub(super) fn metadata(at: &str, file: &schema::Metadata) -> Result<Claim, ConfigError> {
    Ok(Claim {
        namespace: not_empty(&format!("{at}.namespace"), &file.namespace)?.to_owned(),
        path: names(&format!("{at}.name"), &file.name)?,
    })
}

fn names(at: &str, file: &schema::NamePath) -> Result<Vec<String>, ConfigError> {
    let path = match file {
        schema::NamePath::Name(name) => vec![name.clone()],
        schema::NamePath::List(names) => names.clone(),
    };
    if path.is_empty() || path.iter().any(String::is_empty) {
        return invalid(at, "is empty, or one of its names is");
    }
    Ok(path)
}

/// Where a quota comes from.
pub(super) fn trusted_source(at: &str, file: &schema::TrustedSource) -> Result<Claim, ConfigError> {
    match (&file.jwt, &file.metadata) {
        (Some(jwt), None) => claim(&format!("{at}.jwt"), jwt),
        (None, Some(value)) => metadata(&format!("{at}.metadata"), value),
        _ => invalid(at, "give exactly one of `jwt` and `metadata`"),
    }
}

fn attribute(at: &str, names: &schema::NamePath) -> Result<Vec<String>, ConfigError> {
    let path: Vec<String> = match names {
        schema::NamePath::Name(name) => name.split('.').map(str::to_owned).collect(),
        schema::NamePath::List(names) => names.clone(),
    };
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
