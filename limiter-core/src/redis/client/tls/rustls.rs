//! TLS by rustls, with *ring*.
//!
//! The settings are built once for each URL and shared by all dials: the roots of the application
//! or those of the system, and a client certificate if configured. The provider of cryptography is
//! passed explicitly, so the default provider of the program does not matter.
//!
//! Invariant: the certificate of the server and the host name in it are always verified. Tests:
//! `tests/tls.rs`.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::ConfigError;
use crate::redis::client::tls::Certificates;

/// Trusted roots and client certificate. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(certificates: &Certificates) -> Result<Option<Self>, ConfigError> {
        let roots = match &certificates.roots {
            Some(pem) => configured_roots(pem)?,
            None => system_roots()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ConfigError::invalid("TLS", error, "a usable version of it"))?
            .with_root_certificates(roots);
        let config = match &certificates.client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates_in("client certificate", chain)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
                    ConfigError::invalid("key of the client certificate", error, "a private key in PEM")
                })?;
                config.with_client_auth_cert(chain, key).map_err(|error| {
                    ConfigError::invalid("client certificate", error, "a certificate and its own key")
                })?
            }
        };
        Ok(Some(Self(TlsConnector::from(Arc::new(config)))))
    }

    /// Performs the TLS handshake and verifies that the peer is `host`.
    pub(crate) async fn over(self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}

fn configured_roots(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in("root certificate", pem)? {
        roots.add(certificate).map_err(|error| {
            ConfigError::invalid("root certificate", error, "the certificate of an authority")
        })?;
    }
    Ok(roots)
}

/// Loads the root certificates of the system. Unreadable ones are skipped while others exist.
fn system_roots() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable > 0 {
        return Ok(roots);
    }
    let cause = found
        .errors
        .first()
        .map_or_else(|| "none".to_owned(), ToString::to_string);
    Err(ConfigError::invalid(
        "the system's root certificates",
        cause,
        "at least one, or RedisBuilder::root_certificate",
    ))
}

fn certificates_in(setting: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let expected = "certificates in PEM";
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| ConfigError::invalid(setting, error, expected))?;
    if certificates.is_empty() {
        return Err(ConfigError::invalid(setting, "without a certificate", expected));
    }
    Ok(certificates)
}
