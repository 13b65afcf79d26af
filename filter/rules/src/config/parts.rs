//! Checks of a key's parts.

use super::fault::{ConfigError, fault};
use super::{not_empty, written};
use crate::address::{self, Mask};
use crate::claims::Claim;
use crate::key::{self, escaped};
use crate::part::{Part, Source};

/// Exactly one source per part; every one says what it is called in a key and whether it is hashed unless told otherwise.
pub(super) fn check(
    at: &str,
    file: &written::Part,
    variables: &[String],
) -> Result<Part, ConfigError> {
    let mut found: Vec<(Source, String, bool)> = Vec::new();
    if let Some(name) = &file.header {
        let name = header_name(&format!("{at}.header"), name)?;
        let called = escaped(&name);
        found.push((Source::Header(name), called, true));
    }
    if let Some(name) = &file.cookie {
        let name = not_empty(&format!("{at}.cookie"), name)?.to_owned();
        let called = key::name("@cookie", [name.as_str()]);
        found.push((Source::Cookie(name), called, true));
    }
    if let Some(name) = &file.query {
        let name = not_empty(&format!("{at}.query"), name)?.to_owned();
        let called = key::name("@query", [name.as_str()]);
        found.push((Source::Query(name), called, true));
    }
    if let Some(name) = &file.template {
        let source = variable(&format!("{at}.template"), name, variables)?;
        found.push((source, key::name("@template", [name.as_str()]), false));
    }
    for (field, source, flag) in [
        ("path", Source::Path, file.path),
        ("method", Source::Method, file.method),
        ("host", Source::Host, file.host),
    ] {
        match flag {
            None => {}
            Some(true) => found.push((source, format!("@{field}"), false)),
            Some(false) => {
                return fault(
                    &format!("{at}.{field}"),
                    "is `false`: say `true`, or leave it out",
                );
            }
        }
    }
    if let Some(file) = &file.address {
        let source = address(&format!("{at}.address"), file)?;
        found.push((source, "@address".to_owned(), false));
    }
    if let Some(file) = &file.jwt {
        let claim = claim(&format!("{at}.jwt"), file)?;
        let pieces = std::iter::once(&claim.payload).chain(&claim.path);
        let name = key::name("@jwt", pieces.map(String::as_str));
        found.push((Source::Claim(claim), name, true));
    }
    if let Some(which) = file.mtls {
        let (attribute, prefix, name) = match which {
            written::Mtls::Spiffe => ("uri_san_peer_certificate", "spiffe://", "spiffe"),
            written::Mtls::UriSan => ("uri_san_peer_certificate", "", "uri_san"),
            written::Mtls::DnsSan => ("dns_san_peer_certificate", "", "dns_san"),
            written::Mtls::Subject => ("subject_peer_certificate", "", "subject"),
        };
        let source = Source::Certificate { attribute, prefix };
        found.push((source, format!("@mtls/{name}"), false));
    }
    if let Some(names) = &file.attribute {
        let path = attribute(&format!("{at}.attribute"), names)?;
        let name = key::name("@attribute", path.iter().map(String::as_str));
        found.push((Source::Attribute(path), name, true));
    }
    if let Some(text) = &file.constant {
        let text = not_empty(&format!("{at}.constant"), text)?.to_owned();
        found.push((Source::Constant(text), "@constant".to_owned(), false));
    }
    let sources = found.len();
    let Some((source, name, hashed)) = found.pop().filter(|_| sources == 1) else {
        return fault(
            at,
            format_args!(
                "has {sources} sources: give exactly one of `header`, `cookie`, `query`, `path`, `template`, `method`, `host`, `address`, `jwt`, `mtls`, `attribute` and `constant`"
            ),
        );
    };
    if file.plain && !hashed {
        return fault(
            &format!("{at}.plain"),
            "belongs to `header`, `cookie`, `query`, `jwt` and `attribute`: every other part is plain anyway",
        );
    }
    let claimed = matches!(
        source,
        Source::Header(_) | Source::Cookie(_) | Source::Query(_)
    );
    if file.trusted && !claimed {
        return fault(
            &format!("{at}.trusted"),
            "belongs to `header`, `cookie` and `query`, which clients write",
        );
    }
    Ok(Part {
        source,
        name,
        hashed: hashed && !file.plain,
    })
}

fn variable(at: &str, name: &str, variables: &[String]) -> Result<Source, ConfigError> {
    if variables.iter().any(|variable| variable == name) {
        return Ok(Source::Variable(name.to_owned()));
    }
    let known = if variables.is_empty() {
        "it has no `path_template` with variables".to_owned()
    } else {
        format!("it has `{}`", variables.join("`, `"))
    };
    fault(
        at,
        format_args!("`{name}` is no variable of the rule's `match`: {known}"),
    )
}

fn address(at: &str, file: &written::Address) -> Result<Source, ConfigError> {
    let source = match file.trusted_hops {
        None => address::Source::Peer,
        Some(0) => {
            return fault(
                &format!("{at}.trusted_hops"),
                "0 trusts no proxy: leave it out to use the peer's address",
            );
        }
        Some(hops) => address::Source::TrustedHops(hops),
    };
    for (field, bits, most) in [
        ("ipv4_bits", file.ipv4_bits, 32),
        ("ipv6_bits", file.ipv6_bits, 128),
    ] {
        if bits > most {
            return fault(
                &format!("{at}.{field}"),
                format_args!("{bits} is more than an address has ({most})"),
            );
        }
    }
    let mask = Mask {
        ipv4: file.ipv4_bits,
        ipv6: file.ipv6_bits,
    };
    Ok(Source::Address(source, mask))
}

fn claim(at: &str, file: &written::Jwt) -> Result<Claim, ConfigError> {
    let payload = not_empty(&format!("{at}.payload"), &file.payload)?.to_owned();
    let path = match &file.claim {
        written::Claim::Name(name) => vec![name.clone()],
        written::Claim::List(names) => names.clone(),
    };
    if path.is_empty() || path.iter().any(String::is_empty) {
        return fault(&format!("{at}.claim"), "is empty, or one of its names is");
    }
    Ok(Claim { payload, path })
}

fn attribute(at: &str, names: &written::Names) -> Result<Vec<String>, ConfigError> {
    let path: Vec<String> = match names {
        written::Names::Dotted(name) => name.split('.').map(str::to_owned).collect(),
        written::Names::List(names) => names.clone(),
    };
    // A zero byte would separate names where the ABI passes them.
    let bad = |name: &String| name.is_empty() || name.contains('\0');
    if path.is_empty() || path.iter().any(bad) {
        return fault(
            at,
            "is not a name such as `connection.requested_server_name`",
        );
    }
    Ok(path)
}

/// Header names are matched in lower case, as Envoy keeps them.
pub(super) fn header_name(at: &str, name: &str) -> Result<String, ConfigError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let pseudo = matches!(
        name,
        ":authority" | ":method" | ":path" | ":scheme" | ":protocol"
    );
    if !pseudo && (name.is_empty() || !name.bytes().all(token)) {
        return fault(at, format_args!("`{name}` is not the name of a header"));
    }
    Ok(name.to_ascii_lowercase())
}
