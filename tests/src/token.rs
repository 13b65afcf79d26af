//! Signed tokens of clients, and Envoy's filter that verifies them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

const SECRET: &[u8] = b"a secret that only the issuer and Envoy know";

/// A token with these claims, signed with HMAC-SHA256.
pub fn token(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!(
        "{}.{}",
        part(&json!({ "alg": "HS256", "typ": "JWT" })),
        part(claims)
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    let signature = hmac::sign(&key, text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Envoy's `jwt_authn` filter, which verifies them and puts their claims into metadata as `payload`.
pub fn jwt_authn() -> Value {
    let jwks =
        json!({ "keys": [{ "kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(SECRET) }] });
    json!({
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": { "issuer": {
                "issuer": "issuer",
                "local_jwks": { "inline_string": jwks.to_string() },
                "payload_in_metadata": "payload",
            } },
            "rules": [{ "match": { "prefix": "/" }, "requires": { "requires_any": { "requirements": [
                { "provider_name": "issuer" }, { "allow_missing": {} },
            ] } } }],
        },
    })
}
