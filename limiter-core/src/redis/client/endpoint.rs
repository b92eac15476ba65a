//! Where a server is, and how to log in there: what a URL says.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;

use bb8_redis::redis;
use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::error::ConfigError;
use crate::redis::client::tls::{Certificates, Tls};
use crate::redis::secret_url::SecretUrl;

/// One server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) place: HostPort,
    pub(crate) login: RedisConnectionInfo,
    pub(crate) tls: Option<Tls>,
}

#[derive(Clone)]
pub(crate) enum HostPort {
    /// Host and port.
    Tcp(Arc<(String, u16)>),
    /// The path of a socket.
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Endpoint {
    /// What a URL says, with the settings that a limiter needs: RESP3, which tells at once when the
    /// server hangs up, and no CLIENT SETINFO, which a user would need a permission for.
    pub(crate) fn parse(url: &SecretUrl, certificates: &Certificates) -> Result<Self, ConfigError> {
        let example =
            "a URL such as redis://user:password@host:6379/0, with user and password percent-encoded";
        let mut parsed = redis::parse_redis_url(url.expose()).ok_or_else(|| url.invalid(example))?;
        // Of the parsed URL, since a scheme may be in capitals, or come after a blank.
        let tls = match without_tls(parsed.scheme()) {
            None => None,
            Some(_) if parsed.fragment().is_some() => {
                let expected = "no fragment, since a server's certificate is always verified";
                return Err(url.invalid(expected));
            }
            Some(plain) => {
                // The client library is not asked for TLS, since it would read the system's
                // certificates on each dial, and panics where a program has two providers of
                // cryptography.
                parsed.set_scheme(plain).map_err(|()| url.invalid(example))?;
                let absent = || url.invalid("redis://, or the feature `tls` of limiter-core");
                Some(Tls::new(certificates)?.ok_or_else(absent)?)
            }
        };
        let info = parsed
            .into_connection_info()
            .map_err(|error| match error.detail() {
                // Without a detail the message is one of the client library's constants; a detail
                // may quote the URL.
                None => url.invalid(format_args!("{example} ({error})")),
                Some(_) => url.invalid(example),
            })?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => HostPort::Tcp(Arc::new((host.clone(), *port))),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => HostPort::Unix(path.clone()),
            // TLS was dealt with above. Taken for something else, it would be left out.
            _ => return Err(url.invalid(example)),
        };
        let login = info.redis_settings().clone();
        let login = login.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        Ok(Self { place, login, tls })
    }

    /// Another server, reached with the same settings.
    pub(crate) fn at(&self, address: Arc<(String, u16)>) -> Self {
        Self {
            place: HostPort::Tcp(address),
            ..self.clone()
        }
    }

    /// Host and port, where it is reached by TCP.
    pub(crate) fn address(&self) -> Option<&Arc<(String, u16)>> {
        match &self.place {
            HostPort::Tcp(address) => Some(address),
            #[cfg(unix)]
            HostPort::Unix(_) => None,
        }
    }
}

/// Never the credentials.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
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

/// Whether a URL asks for TLS.
pub(crate) fn wants_tls(url: &SecretUrl) -> bool {
    redis::parse_redis_url(url.expose()).is_some_and(|url| without_tls(url.scheme()).is_some())
}

/// What a scheme that asks for TLS is called without it.
fn without_tls(scheme: &str) -> Option<&'static str> {
    match scheme {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        _ => None,
    }
}
