//! A part of a key, as it is written.

use serde::Deserialize;

/// One part of a key: exactly one source, and how it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("oneOf" = [
    { "required": ["header"] }, { "required": ["cookie"] }, { "required": ["query"] }, { "required": ["path"] },
    { "required": ["template"] }, { "required": ["method"] }, { "required": ["host"] }, { "required": ["address"] },
    { "required": ["jwt"] }, { "required": ["mtls"] }, { "required": ["attribute"] }, { "required": ["constant"] },
])))]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// A header, by its name. Hashed.
    #[serde(default)]
    pub header: Option<String>,
    /// A cookie, by its name. Hashed.
    #[serde(default)]
    pub cookie: Option<String>,
    /// A query parameter, by its name. Hashed.
    #[serde(default)]
    pub query: Option<String>,
    /// `true`: the path, without its query, in its most lenient reading.
    #[serde(default)]
    pub path: Option<bool>,
    /// A variable of the rule's `path_template`, by its name.
    #[serde(default)]
    pub template: Option<String>,
    /// `true`: the method.
    #[serde(default)]
    pub method: Option<bool>,
    /// `true`: the host in lower case, without port.
    #[serde(default)]
    pub host: Option<bool>,
    /// The client's address.
    #[serde(default)]
    pub address: Option<Address>,
    /// A claim of a JWT that Envoy's `jwt_authn` filter has verified before. Hashed.
    #[serde(default)]
    pub jwt: Option<Jwt>,
    /// Something of the client's certificate, which the listener's TLS context must verify.
    #[serde(default)]
    pub mtls: Option<Mtls>,
    /// Any attribute of Envoy's, by its name: `connection.requested_server_name`; a list where a name in it holds a
    /// dot. Hashed.
    #[serde(default)]
    pub attribute: Option<Names>,
    /// This text.
    #[serde(default)]
    pub constant: Option<String>,
    /// Do not hash it: whoever reads Redis can read it.
    #[serde(default)]
    pub plain: bool,
    /// Something in front of this filter has checked what this header, cookie or query parameter says, so a client
    /// cannot choose it. Changes nothing but what `check-config` says.
    #[serde(default)]
    pub trusted: bool,
}

/// The client's address and how much of it tells clients apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The N-th entry of X-Forwarded-For from the right, 1 being the last. By default, what Envoy takes for the
    /// client's address.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub trusted_hops: Option<usize>,
    /// Leading bits of an IPv4 address.
    #[serde(default = "ipv4_bits")]
    #[cfg_attr(feature = "schema", schemars(range(max = 32)))]
    pub ipv4_bits: u8,
    /// Leading bits of an IPv6 address.
    #[serde(default = "ipv6_bits")]
    #[cfg_attr(feature = "schema", schemars(range(max = 128)))]
    pub ipv6_bits: u8,
}

const fn ipv4_bits() -> u8 {
    32
}

/// An IPv6 customer usually holds a whole /64, and could otherwise choose a new address for each request.
const fn ipv6_bits() -> u8 {
    64
}

/// A claim of a verified JWT.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// The provider's `payload_in_metadata`.
    pub payload: String,
    /// The claim's name, or a list of names that lead to it. Dots in a name are part of it.
    pub claim: Claim,
}

/// What of the client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// A dotted name, or the list of what stands between the dots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
pub enum Names {
    /// Names with dots between them.
    Dotted(String),
    /// One by one.
    List(Vec<String>),
}

/// A claim's name, or a list of names that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
pub enum Claim {
    /// One name.
    Name(String),
    /// Names that lead to it.
    List(Vec<String>),
}
