//! TLS to Redis. The files are read for each connection, so that certificates may be replaced while this runs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::policy::TlsFiles;
use crate::store::error::ConnectionError;

/// The TLS configuration. Reads files, so it must not run on a runtime thread.
pub fn configuration(files: &TlsFiles) -> Result<ClientConfig, ConnectionError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectionError::Tls(Arc::new(io::Error::other(error))))?
        .with_root_certificates(roots(files)?);
    let (Some(certificate), Some(key)) = (&files.certificate, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("tls.certificate", certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("tls.key", error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable("tls.certificate", error))
}

fn roots(files: &TlsFiles) -> Result<RootCertStore, ConnectionError> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = &files.ca else {
        // Skips certificates of the system that cannot be parsed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in certificates("tls.ca", ca)? {
        let added = roots.add(certificate);
        added.map_err(|error| unusable("tls.ca", error))?;
    }
    Ok(roots)
}

fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConnectionError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|error| unusable(field, error))?;
    if read.is_empty() {
        return Err(unusable(field, "no certificate in it"));
    }
    Ok(read)
}

fn unusable(
    field: &'static str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ConnectionError {
    ConnectionError::File {
        field,
        source: Arc::new(io::Error::other(error)),
    }
}
