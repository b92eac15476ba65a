//! The address of a listener. Tests: below.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

/// The start of the text form of a unix socket.
const UNIX: &str = "unix:";

/// The address of a listener. Text form: `127.0.0.1:8080` or `unix:/run/limiter.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns a port on the loopback interface.
    #[must_use]
    pub const fn loopback(port: u16) -> Self {
        let ip = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        Self::Tcp(SocketAddr::new(ip, port))
    }

    /// Returns whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some(path) if Path::new(path).is_absolute() => Ok(Self::Unix(path.into())),
            Some(path) => Err(format!(
                "`{path}` is not an absolute path, expected unix:/path/to/socket"
            )),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "`{text}` is no address, expected IP:PORT such as 127.0.0.1:8080, or unix:/path/to/socket"
                )
            }),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, is_local) in [
            ("127.0.0.1:8080", true),
            ("[::1]:0", true),
            ("0.0.0.0:80", false),
            ("unix:/run/limiter.sock", true),
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_local(), is_local, "{text}");
        }
        for text in [
            "",
            "localhost",
            "unix:",
            "unix:limiter.sock",
            "8080",
            "/run/l.sock",
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
