//! Where a server is, and how to log in there: what a URL says.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bb8_redis::redis::{
    ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError,
};

use super::tls::{Certificates, Tls};
use crate::error::ConfigError;

/// One server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) place: Place,
    pub(super) login: RedisConnectionInfo,
    pub(super) tls: Option<Tls>,
}

#[derive(Clone)]
pub(super) enum Place {
    /// Host and port.
    Tcp(Arc<(String, u16)>),
    /// The path of a socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// What a URL says, with the settings that a limiter needs: RESP3, which tells at once when the server hangs up, and
    /// no CLIENT SETINFO, which a user would need a permission for.
    pub(super) fn parse(url: &str, certificates: &Certificates) -> Result<Self, ConfigError> {
        let (plain, wants_tls) = without_tls(url)?;
        let info = plain
            .as_str()
            .into_connection_info()
            .map_err(|error| invalid_url(url, &error))?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Place::Tcp(Arc::new((host.clone(), *port)))
            }
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(unusable(url, "redis://host:6379/0")),
        };
        let tls = if wants_tls {
            let Some(tls) = Tls::new(certificates)? else {
                return Err(unusable(url, "redis://, or the feature `tls` of limiter-core"));
            };
            Some(tls)
        } else {
            None
        };
        let login = info.redis_settings().clone();
        let login = login.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        Ok(Self { place, login, tls })
    }

    /// Another server, reached with the same settings.
    pub(super) fn at(&self, address: Arc<(String, u16)>) -> Self {
        Self {
            place: Place::Tcp(address),
            ..self.clone()
        }
    }

    /// Host and port, where it is reached by TCP.
    pub(super) fn address(&self) -> Option<&Arc<(String, u16)>> {
        match &self.place {
            Place::Tcp(address) => Some(address),
            Place::Unix(_) => None,
        }
    }
}

/// Never the credentials.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(address) => write!(f, "{}:{}", address.0, address.1),
            Place::Unix(path) => write!(f, "{}", path.display()),
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

const SECURE: [(&str, &str); 2] = [("rediss://", "redis://"), ("valkeys://", "valkey://")];

/// Whether a URL asks for TLS.
pub(super) fn wants_tls(url: &str) -> bool {
    SECURE.iter().any(|(secure, _)| url.starts_with(secure))
}

/// The URL under the scheme without TLS, and whether it had the one with TLS. The client library is not asked for TLS,
/// since it would read the system's certificates on each dial, and panics where a program has two providers of cryptography.
fn without_tls(url: &str) -> Result<(String, bool), ConfigError> {
    let found = SECURE
        .iter()
        .find_map(|(secure, plain)| Some((plain, url.strip_prefix(secure)?)));
    match found {
        None => Ok((url.to_owned(), false)),
        Some((_, rest)) if rest.contains('#') => Err(unusable(
            url,
            "no fragment, since a server's certificate is always verified",
        )),
        Some((plain, rest)) => Ok((format!("{plain}{rest}"), true)),
    }
}

fn invalid_url(url: &str, error: &RedisError) -> ConfigError {
    unusable(url, format!("a URL such as redis://host:6379/0 ({error})"))
}

pub(super) fn unusable(url: &str, expected: impl Into<String>) -> ConfigError {
    ConfigError::invalid("redis URL", without_credentials(url), expected)
}

fn without_credentials(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!(
                "{}…{}",
                url.get(..scheme + 3).unwrap_or_default(),
                url.get(at..).unwrap_or_default()
            )
        }
        (_, Some(at)) => format!("…{}", url.get(at..).unwrap_or_default()),
        _ => url.to_owned(),
    }
}
