//! Key components: what a configuration says of the parts of a key.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Address;

/// One component of a key: exactly one source, and how the key contains its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    { "required": ["header"] }, { "required": ["cookie"] }, { "required": ["query"] }, { "required": ["path"] },
    { "required": ["template"] }, { "required": ["method"] }, { "required": ["host"] }, { "required": ["address"] },
    { "required": ["jwt"] }, { "required": ["metadata"] }, { "required": ["mtls"] }, { "required": ["attribute"] }, { "required": ["constant"] },
]))]
#[serde(default, deny_unknown_fields)]
pub struct KeyComponent {
    /// Name of a header. Hashed.
    pub header: Option<String>,
    /// Name of a cookie. Hashed.
    pub cookie: Option<String>,
    /// Name of a query parameter. Hashed.
    pub query: Option<String>,
    /// `true`: the path, without its query, in its most lenient reading.
    pub path: Option<bool>,
    /// Name of a variable in the rule's `path_template`.
    pub template: Option<String>,
    /// `true`: the method.
    pub method: Option<bool>,
    /// `true`: the host in lower case, without port.
    pub host: Option<bool>,
    /// The client's address.
    pub address: Option<Address>,
    /// A claim of a JWT that Envoy's `jwt_authn` filter, earlier in the chain, has verified. Hashed.
    pub jwt: Option<Jwt>,
    /// A value that an earlier filter has set in the request's dynamic metadata. Hashed.
    pub metadata: Option<Metadata>,
    /// An identity from the client's certificate, which the listener's TLS context must verify.
    pub mtls: Option<Mtls>,
    /// Name of any Envoy attribute, such as `connection.requested_server_name`, or a list of names if one of them
    /// contains a dot. Hashed.
    pub attribute: Option<NamePath>,
    /// A fixed text, the same for every request.
    pub constant: Option<String>,
    /// Do not hash the value: anybody who can read Redis can read it.
    pub plain: bool,
    /// Something in front of this filter verifies this header, cookie or query parameter, so that clients cannot choose
    /// its value. Affects only the findings of `check-config`.
    pub trusted: bool,
}

/// A claim of a verified JWT.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// The `payload_in_metadata` of the provider in `jwt_authn`.
    pub payload: String,
    /// The claim's name, or the list of names that lead to a nested claim. A dot is an ordinary character of a name.
    pub claim: NamePath,
}

/// A value of the request's dynamic metadata.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The namespace that the filter writes to, usually its own name: `envoy.filters.http.ext_authz`.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// The value's name, or a list of names that lead to it. Dots in a name are part of it.
    pub name: NamePath,
}

/// The source of a quota, which no client can choose. Exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{ "required": ["jwt"] }, { "required": ["metadata"] }]))]
#[serde(default, deny_unknown_fields)]
pub struct TrustedSource {
    /// A claim of a JWT that Envoy's `jwt_authn` filter, earlier in the chain, has verified.
    pub jwt: Option<Jwt>,
    /// A value that an earlier filter has set in the request's dynamic metadata.
    pub metadata: Option<Metadata>,
}

/// Which identity from the client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mtls {
    /// Its first URI SAN, if that is a SPIFFE ID.
    Spiffe,
    /// Its first URI SAN.
    UriSan,
    /// Its first DNS SAN.
    DnsSan,
    /// Its subject.
    Subject,
}

/// A name, or the list of names that lead to a value.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum NamePath {
    /// A name.
    Name(String),
    /// A list of names.
    List(Vec<String>),
}
