//! Client identities: TLS certificates.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// A certificate authority, and the certificates that it signed for one Envoy and one client.
pub struct Identities {
    authority: CertificateDer<'static>,
    client: CertificateDer<'static>,
    client_key: Vec<u8>,
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identities")
    }
}

impl Identities {
    /// Creates them, and writes Envoy's into a folder, where [`Self::transport_socket`] refers to them.
    ///
    /// # Panics
    /// The folder cannot be written.
    pub fn new(folder: &Path, uri: &str, dns: &str, common_name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("a certificate");

        let server_key = KeyPair::generate().expect("a key");
        let server = CertificateParams::new(vec!["localhost".to_owned()])
            .expect("parameters")
            .signed_by(&server_key, &authority)
            .expect("a certificate");
        for (name, text) in [
            ("server.pem", server.pem()),
            ("server.key", server_key.serialize_pem()),
            ("authority.pem", authority.pem()),
        ] {
            std::fs::write(folder.join(name), text).expect("a file");
        }

        let client_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![dns.to_owned()]).expect("parameters");
        let uri = SanType::URI(uri.try_into().expect("ASCII"));
        params.subject_alt_names.push(uri);
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let client = params
            .signed_by(&client_key, &authority)
            .expect("a certificate");
        Self {
            authority: authority.der().clone(),
            client: client.der().clone(),
            client_key: client_key.serialize_der(),
        }
    }

    /// A listener's transport socket that requests client certificates and verifies those that clients present.
    pub fn transport_socket(folder: &Path) -> Value {
        let file = |name: &str| json!({ "filename": folder.join(name) });
        json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "tls_certificates": [{ "certificate_chain": file("server.pem"), "private_key": file("server.key") }],
                    "validation_context": { "trusted_ca": file("authority.pem") },
                },
            },
        })
    }

    /// Sends bytes over TLS, with the client's certificate or without one, and reads until the peer closes.
    ///
    /// # Panics
    /// The connection fails.
    pub async fn exchange(&self, port: u16, with_certificate: bool, bytes: &[u8]) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("a root");
        let config =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(roots);
        let config = if with_certificate {
            let key = PrivateKeyDer::Pkcs8(self.client_key.clone().into());
            config
                .with_client_auth_cert(vec![self.client.clone()], key)
                .expect("a client certificate")
        } else {
            config.with_no_client_auth()
        };
        let stream = TcpStream::connect(("127.0.0.1", port))
            .await
            .expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("a handshake");
        stream.write_all(bytes).await.expect("a request");
        let mut answer = Vec::new();
        // Envoy may close without close_notify; only what it sent before counts.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}
