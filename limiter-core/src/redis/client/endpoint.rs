//! Address, login and TLS settings of one server, parsed from a URL.
//!
//! The client library parses the URL with the plain scheme, because its own TLS reads the
//! certificates of the system at each dial and panics in a program with two cryptography providers.
//! The module `tls` secures the connection instead.
//!
//! Invariants: no output and no error contains credentials, and no URL can disable the verification
//! of the server's certificate. Tests: `tests/secrets.rs`, `tests/tls.rs`.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;

use bb8_redis::redis;
use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::error::ConfigError;
use crate::redis::client::tls::{Certificates, Tls};
use crate::redis::secret_url::SecretUrl;

/// Address, login and TLS settings of one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) host_port: HostPort,
    pub(crate) login: RedisConnectionInfo,
    pub(crate) tls: Option<Tls>,
}

#[derive(Clone)]
pub(crate) enum HostPort {
    /// Host and port.
    Tcp(Arc<(String, u16)>),
    /// The path of a Unix socket.
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses a URL. The login uses RESP3, which reports a closed connection immediately, and omits
    /// CLIENT SETINFO, for which the user would need a permission.
    pub(crate) fn parse(url: &SecretUrl, certificates: &Certificates) -> Result<Self, ConfigError> {
        let example =
            "a URL such as redis://user:password@host:6379/0, with user and password percent-encoded";
        let mut parsed = redis::parse_redis_url(url.expose()).ok_or_else(|| url.invalid(example))?;
        // Uses the scheme of the parsed URL, since the text may have capitals or leading blanks.
        let tls = match without_tls(parsed.scheme()) {
            None => None,
            Some(_) if parsed.fragment().is_some() => {
                let expected = "no fragment, since a server's certificate is always verified";
                return Err(url.invalid(expected));
            }
            Some(plain) => {
                // The client library must not handle TLS: it reads the system's certificates on
                // each dial and panics in a program with two cryptography providers.
                parsed.set_scheme(plain).map_err(|()| url.invalid(example))?;
                let absent = || url.invalid("redis://, or the feature `tls` of limiter-core");
                Some(Tls::new(certificates)?.ok_or_else(absent)?)
            }
        };
        let info = parsed
            .into_connection_info()
            .map_err(|error| match error.detail() {
                // Without a detail, the message is a constant of the client library; a detail may
                // quote the URL.
                None => url.invalid(format_args!("{example} ({error})")),
                Some(_) => url.invalid(example),
            })?;
        let host_port = match info.addr() {
            ConnectionAddr::Tcp(host, port) => HostPort::Tcp(Arc::new((host.clone(), *port))),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => HostPort::Unix(path.clone()),
            // TLS is handled above. Any other kind is rejected, since its TLS would be dropped.
            _ => return Err(url.invalid(example)),
        };
        let login = info.redis_settings().clone();
        let login = login.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        Ok(Self {
            host_port,
            login,
            tls,
        })
    }

    /// Returns the endpoint of another server with the same settings.
    pub(crate) fn at(&self, address: Arc<(String, u16)>) -> Self {
        Self {
            host_port: HostPort::Tcp(address),
            ..self.clone()
        }
    }

    /// Returns host and port of a TCP endpoint.
    pub(crate) fn address(&self) -> Option<&Arc<(String, u16)>> {
        match &self.host_port {
            HostPort::Tcp(address) => Some(address),
            #[cfg(unix)]
            HostPort::Unix(_) => None,
        }
    }
}

/// Writes the address, never the credentials.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host_port {
            HostPort::Tcp(address) => write!(f, "{}:{}", address.0, address.1),
            #[cfg(unix)]
            HostPort::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Endpoint({self}{})",
            if self.tls.is_some() { ", TLS" } else { "" }
        )
    }
}

/// Returns whether the scheme of a URL requires TLS.
pub(crate) fn wants_tls(url: &SecretUrl) -> bool {
    redis::parse_redis_url(url.expose()).is_some_and(|url| without_tls(url.scheme()).is_some())
}

/// Returns the plain scheme that corresponds to a TLS scheme.
fn without_tls(scheme: &str) -> Option<&'static str> {
    match scheme {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        _ => None,
    }
}
