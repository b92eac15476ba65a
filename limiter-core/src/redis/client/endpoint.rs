//! Address, login and TLS settings of one server, parsed from a URL.
//!
//! The client library parses the URL with the plain scheme, because its own TLS reads the
//! certificates of the system at each dial and panics in a program with two cryptography providers.
//! The module `tls` secures the connection instead.
//!
//! Invariants: no output and no error contains credentials, no URL can disable the verification of
//! the server's certificate, and no part of a URL is ignored. Tests: below, `tests/secrets.rs`,
//! `tests/tls.rs`.

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
        // The client library ignores these parts. A password that is not percent-encoded can end in
        // them.
        if parsed.fragment().is_some() {
            return Err(url.invalid("no fragment; write `#` in a user or password as %23"));
        }
        let parameters: &[&str] = match parsed.scheme().ends_with("unix") {
            true => &["db", "user", "pass", "protocol"],
            false => &["protocol"],
        };
        if parsed
            .query_pairs()
            .any(|(name, _)| !parameters.contains(&&*name))
        {
            let expected = format!("no parameters but {}", parameters.join(", "));
            return Err(url.invalid(expected));
        }
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
        if matches!(info.addr(), ConnectionAddr::Tcp(_, 0)) {
            return Err(url.invalid("a port above 0"));
        }
        let login = info.redis_settings().clone();
        if login.db() < 0 {
            return Err(url.invalid("a database of 0 or more"));
        }
        // The login would omit the user, so the server would apply the permissions of another one.
        if login.username().is_some() && login.password().is_none() {
            return Err(url.invalid("a password besides the user; any, if the user needs none"));
        }
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

#[cfg(test)]
mod tests {
    use crate::redis::client::endpoint::*;

    fn parse(url: &str) -> Result<Endpoint, String> {
        Endpoint::parse(&url.into(), &Certificates::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn part_that_would_be_ignored_is_rejected() {
        for (url, expected) in [
            (
                "redis://h/?db=3",
                "`redis://h/?…`, expected no parameters but protocol",
            ),
            ("redis://h/0?timeout=1s", "expected no parameters but protocol"),
            ("redis://h/#x", "`redis://h/#…`, expected no fragment"),
            ("redis://u:12#secret@h/", "`redis://…`, expected no fragment"),
            ("redis://u:12?secret@h/", "`redis://…`, expected no parameters"),
            (
                "redis://secret@h/",
                "`redis://…@h/`, expected a password besides the user",
            ),
            ("redis://h/-1", "expected a database of 0 or more"),
            ("redis://h:0/", "`redis://h:0/`, expected a port above 0"),
            #[cfg(unix)]
            (
                "unix:///s?password=secret",
                "expected no parameters but db, user, pass, protocol",
            ),
            #[cfg(unix)]
            ("unix:///s?user=secret", "expected a password besides the user"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn parts_of_url_are_decoded() {
        let all = parse("redis://us%40er:p%23%3F%2Fw@[::1]:7000/3?protocol=resp2").unwrap();
        assert_eq!(
            all.address().map(|address| (&*address.0, address.1)),
            Some(("::1", 7000))
        );
        assert_eq!(all.login.username(), Some("us@er"));
        assert_eq!((all.login.password(), all.login.db()), (Some("p#?/w"), 3));
        assert_eq!(all.login.protocol(), ProtocolVersion::RESP3);
        let password = parse("redis://:secret@h").unwrap();
        assert_eq!(
            (password.login.username(), password.login.password()),
            (None, Some("secret"))
        );
        #[cfg(unix)]
        {
            let socket = parse("unix:///run/a%20b?db=2&user=u&pass=p%23").unwrap();
            assert!(matches!(&socket.host_port, HostPort::Unix(path) if path.ends_with("a b")));
            assert_eq!((socket.login.password(), socket.login.db()), (Some("p#"), 2));
        }
    }
}
