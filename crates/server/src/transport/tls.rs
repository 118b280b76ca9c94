//! TLS from files.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::error::ServeError;

/// Returns an acceptor of TLS connections with a certificate chain and its private key, both PEM
/// files.
///
/// # Errors
/// [`ServeError::Tls`] naming the file that cannot be used.
pub(crate) fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, ServeError> {
    let unusable = |path: &Path, error: &dyn std::fmt::Display| {
        ServeError::Tls(format!("{} cannot be used: {error}; give a PEM file", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(chain, &error))?;
    if certificates.is_empty() {
        return Err(unusable(chain, &"it holds no certificate"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, private))
        .map_err(|error| {
            ServeError::Tls(format!("{error}; certificate and key must belong together"))
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
