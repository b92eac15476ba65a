//! TLS of listeners, and the clients that identify themselves by certificates.
//!
//! The files are read every second. Changed files apply to new connections; files that cannot be
//! used change nothing. Tests: `tests/tls.rs`.

mod names;

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::access::Client;
use crate::settings::TlsSettings;

/// The protocols of HTTP listeners, the preferred one first.
const HTTP_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The interval at which the files are read.
const INTERVAL: Duration = Duration::from_secs(1);
/// The files must be unchanged for this time, because a certificate and its key are not replaced at
/// once.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// The TLS of one listener. Cheap to clone.
#[derive(Clone)]
pub(super) struct ServerTls(Arc<FollowedFiles>);

struct FollowedFiles {
    settings: TlsSettings,
    protocol: &'static str,
    acceptor: RwLock<TlsAcceptor>,
}

/// Shows no key.
impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls(..)")
    }
}

impl ServerTls {
    /// Reads the files of TLS for a protocol, and follows them. Must be called in a runtime.
    pub(super) fn start(settings: &TlsSettings, protocol: &'static str) -> Result<Self, String> {
        let files = FileContents::read(settings);
        let tls = Arc::new(FollowedFiles {
            settings: settings.clone(),
            protocol,
            acceptor: RwLock::new(load(settings, protocol)?),
        });
        tokio::spawn(follow(Arc::downgrade(&tls), settings.clone(), files));
        Ok(Self(tls))
    }

    /// Completes the handshake: the stream and the client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Client)> {
        let stream = self.0.acceptor().accept(stream).await?;
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let client = match certificate {
            None => Client::Anonymous,
            Some(certificate) => Client::Certificate(names::of(certificate).into()),
        };
        Ok((stream, client))
    }
}

impl FollowedFiles {
    fn acceptor(&self) -> TlsAcceptor {
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner);
        acceptor.clone()
    }

    /// Applies the files to new connections.
    fn reload(&self) {
        let protocol = self.protocol;
        match load(&self.settings, protocol) {
            Ok(acceptor) => {
                *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
                tracing::info!(protocol, "TLS files reloaded");
            }
            Err(reason) => {
                tracing::warn!(protocol, %reason, "TLS files rejected; keeping the last certificate");
            }
        }
    }
}

/// The bytes of the files, `None` for those that cannot be read.
#[derive(PartialEq, Eq)]
struct FileContents([Option<Vec<u8>>; 3]);

impl FileContents {
    fn read(settings: &TlsSettings) -> Self {
        let files = [
            Some(&settings.cert_file),
            Some(&settings.key_file),
            settings.client_ca_file.as_ref(),
        ];
        Self(files.map(|path| path.and_then(|path| std::fs::read(path).ok())))
    }
}

/// Reloads changed files until the listener has ended.
async fn follow(tls: Weak<FollowedFiles>, settings: TlsSettings, mut last: FileContents) {
    let settings = Arc::new(settings);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(tls) = tls.upgrade() else { return };
        let Some(read) = read_apart(&settings).await.filter(|read| *read != last) else {
            continue;
        };
        tokio::time::sleep(SETTLED_AFTER).await;
        if read_apart(&settings).await.as_ref() == Some(&read) {
            // The task ends early only with the runtime.
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
            last = read;
        }
    }
}

/// Reads the files in a thread for blocking calls: a file system that hangs must not hold up the
/// calls of other clients. `None` while the runtime shuts down.
async fn read_apart(settings: &Arc<TlsSettings>) -> Option<FileContents> {
    let settings = Arc::clone(settings);
    let read = tokio::task::spawn_blocking(move || FileContents::read(&settings));
    read.await.ok()
}

/// Reads the files of TLS for a protocol.
fn load(settings: &TlsSettings, protocol: &str) -> Result<TlsAcceptor, String> {
    let unusable = |path: &Path, error: &dyn std::fmt::Display| {
        format!("cannot use the TLS file {}: {error}", path.display())
    };
    let certificates = |path: &Path| {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(read) if read.is_empty() => Err(unusable(path, &"it contains no certificate in PEM")),
            Ok(read) => Ok(read),
            Err(error) => Err(unusable(path, &error)),
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot configure TLS: {error}"))?;
    let builder = match &settings.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path, &error))?;
            }
            // A client without a certificate can send a token.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| unusable(path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&settings.key_file)
        .map_err(|error| unusable(&settings.key_file, &error))?;
    let mut config = builder
        .with_single_cert(certificates(&settings.cert_file)?, key)
        .map_err(|error| unusable(&settings.cert_file, &error))?;
    config.alpn_protocols = match protocol {
        "grpc" => HTTP_PROTOCOLS.iter().take(1).map(|name| name.to_vec()).collect(),
        "http" | "admin" => HTTP_PROTOCOLS.iter().map(|name| name.to_vec()).collect(),
        _ => Vec::new(),
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}
