//! One HTTP/1.1 request to the receiver of events, on a connection of its own.
//!
//! A status 2xx confirms the event. 5xx, 429, a failed connection, and a request without a response
//! within `TIMEOUT` are temporary. Every other status refuses the event; redirects are among them,
//! since they are not followed. Neither errors nor `Debug` contain the URL, which can contain a
//! secret.
//!
//! Tests: `tests/control_plane/webhook.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::settings::WebhookSettings;

/// The longest time of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The reason for an event that was not delivered.
#[derive(Debug)]
pub(super) enum DeliveryError {
    /// The receiver answered with a status that is neither 2xx nor 5xx nor 429.
    Refused(StatusCode),
    /// The receiver may accept the event later.
    Unavailable(String),
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the receiver answered {status}"),
            Self::Unavailable(reason) => f.write_str(reason),
        }
    }
}

/// A client of one receiver.
pub(super) struct WebhookClient {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

/// Shows no URL, which can contain a secret.
impl fmt::Debug for WebhookClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookClient(..)")
    }
}

impl WebhookClient {
    pub(super) fn new(settings: &WebhookSettings) -> Result<Self, String> {
        let uri: Uri = settings
            .url()
            .parse()
            .map_err(|_| "the URL is invalid".to_owned())?;
        let host = uri.host().ok_or("the URL has no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = is_tls.then(connector).transpose()?;
        Ok(Self { uri, host, port, tls })
    }

    /// Sends an event. `id` identifies it if it is sent again.
    pub(super) async fn send(&self, id: i64, body: &Value) -> Result<(), DeliveryError> {
        let sent = tokio::time::timeout(TIMEOUT, self.post(id, body.to_string()));
        let unavailable = |_| DeliveryError::Unavailable("the receiver did not answer in 5 s".to_owned());
        let status = sent
            .await
            .map_err(unavailable)?
            .map_err(DeliveryError::Unavailable)?;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::TOO_MANY_REQUESTS => Err(DeliveryError::Unavailable(format!(
                "the receiver answered {status}"
            ))),
            status if status.is_server_error() => Err(DeliveryError::Unavailable(format!(
                "the receiver answered {status}"
            ))),
            status => Err(DeliveryError::Refused(status)),
        }
    }

    async fn post(&self, id: i64, body: String) -> Result<StatusCode, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| format!("cannot connect to the receiver: {error}"))?;
        let Some(tls) = &self.tls else {
            return self.request(TokioIo::new(stream), id, body).await;
        };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|error| format!("the host of the receiver has no valid name: {error}"))?;
        let stream = tls
            .connect(name, stream)
            .await
            .map_err(|error| format!("cannot connect to the receiver by TLS: {error}"))?;
        self.request(TokioIo::new(stream), id, body).await
    }

    async fn request(
        &self,
        stream: impl Read + Write + Unpin + Send + 'static,
        id: i64,
        body: String,
    ) -> Result<StatusCode, String> {
        let failed = |error: hyper::Error| format!("the request to the receiver failed: {error}");
        let (mut sender, connection) = http1::handshake(stream).await.map_err(failed)?;
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or("", |of| of.as_str());
        let request = Request::post(path)
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("limiter-server/", env!("CARGO_PKG_VERSION")),
            )
            .header("idempotency-key", id.to_string())
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| format!("the request to the receiver is invalid: {error}"))?;
        // The connection ends with this future, also after a timeout. A receiver can close it
        // together with its answer, so the end of the connection is no failure by itself.
        let mut answer = std::pin::pin!(sender.send_request(request));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            _ = connection => answer.await,
        };
        Ok(answer.map_err(failed)?.status())
    }
}

/// TLS with the certificates of the system.
fn connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("the system has no certificates of authorities, which https needs".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot configure TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
