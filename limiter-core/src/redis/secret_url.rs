//! A URL of a Redis server may contain a user name and a password, and a malformed one may contain
//! them anywhere.
//!
//! [`SecretUrl`] is the only type that keeps such a URL. Its `Debug` and `Display` show the parts
//! of a well-formed URL that cannot be credentials: scheme, host, port, the number of the database,
//! the path of a socket. They show at most the scheme of any other text. `tests/secrets.rs` checks
//! this for every public type, error and log event.

use std::fmt;

use bb8_redis::redis;

use crate::error::ConfigError;

/// The schemes of Redis URLs. A text without one of them shows nothing: it may be a password alone.
const SCHEMES: [&str; 7] = [
    "redis:",
    "rediss:",
    "valkey:",
    "valkeys:",
    "unix:",
    "redis+unix:",
    "valkey+unix:",
];

/// A URL that is never shown in full.
#[derive(Clone)]
pub(crate) struct SecretUrl {
    text: Box<str>,
    /// The number of this URL in the list that the application passed, counted from 1: the shown
    /// part of two URLs may be equal.
    number: Option<usize>,
}

impl SecretUrl {
    /// Returns the URLs of a list.
    pub(crate) fn list<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Vec<Self> {
        let numbered = (1..).zip(urls);
        numbered
            .map(|(number, url)| Self {
                number: Some(number),
                ..Self::from(url.into())
            })
            .collect()
    }

    /// Returns the text with its credentials, for the client library alone.
    pub(crate) fn expose(&self) -> &str {
        &self.text
    }

    /// Returns the error of a URL that is unusable.
    pub(crate) fn invalid(&self, expected: impl fmt::Display) -> ConfigError {
        let expected = match self.number {
            Some(number) => format!("{expected} (URL {number} of the list)"),
            None => expected.to_string(),
        };
        ConfigError::invalid("redis URL", self, expected)
    }

    /// Returns the parts that cannot be credentials, or `None` if credentials may have been taken
    /// for one of them.
    fn public_parts(&self) -> Option<String> {
        let url = redis::parse_redis_url(&self.text)?;
        let has_login = !url.username().is_empty() || url.password().is_some();
        let after_authority = [Some(url.path()), url.query(), url.fragment()];
        // An `@` there means that the password contains `/`, `?` or `#`, so that its start was
        // taken for a host or a port.
        if after_authority
            .into_iter()
            .flatten()
            .any(|part| part.contains('@'))
        {
            return None;
        }
        let mut shown = format!("{}://", url.scheme());
        match url.host_str().filter(|host| !host.is_empty()) {
            Some(host) => {
                shown.push_str(if has_login { "…@" } else { "" });
                shown.push_str(host);
                if let Some(port) = url.port() {
                    shown.push_str(&format!(":{port}"));
                }
                let database = url.path().trim_start_matches('/');
                let is_number = database.bytes().all(|byte| byte.is_ascii_digit());
                shown.push_str(if is_number { url.path() } else { "/…" });
            }
            None if url.path().starts_with('/') && !url.path().contains(':') => shown.push_str(url.path()),
            None => return None,
        }
        shown.push_str(if url.query().is_some() { "?…" } else { "" });
        shown.push_str(if url.fragment().is_some() { "#…" } else { "" });
        Some(shown)
    }

    fn scheme(&self) -> Option<&'static str> {
        let text = self.text.trim_start();
        let is_scheme_of = |scheme: &&str| {
            let start = text.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        SCHEMES.into_iter().find(is_scheme_of)
    }
}

impl From<String> for SecretUrl {
    fn from(url: String) -> Self {
        Self {
            text: url.into(),
            number: None,
        }
    }
}

impl From<&str> for SecretUrl {
    fn from(url: &str) -> Self {
        Self::from(url.to_owned())
    }
}

/// Without credentials.
impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.public_parts(), self.scheme()) {
            (Some(parts), _) => f.write_str(&parts),
            (None, Some(scheme)) => write!(f, "{scheme}//…"),
            (None, None) => f.write_str("…"),
        }
    }
}

/// Without credentials.
impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use crate::redis::secret_url::*;

    #[test]
    fn display_hides_credentials() {
        for (url, shown) in [
            ("redis://h:1/3", "redis://h:1/3"),
            ("redis://h", "redis://h"),
            ("rediss://[::1]:1/", "rediss://[::1]:1/"),
            ("redis://user:secret@h:1/x", "redis://…@h:1/…"),
            ("redis://:secret@h", "redis://…@h"),
            ("redis://secret@h", "redis://…@h"),
            ("redis://h/x?password=secret", "redis://h/…?…"),
            ("rediss://h/#secret", "rediss://h/#…"),
            ("unix:///run/s?pass=secret&db=x", "unix:///run/s?…"),
            // The password contains a character that ends the authority.
            ("redis://user:sec?ret@h/", "redis://…"),
            ("redis://user:sec#ret@h/", "redis://…"),
            ("redis://user:12/ret@h/", "redis://…"),
            ("redis://user:secret", "redis://…"),
            ("redis:secret", "redis://…"),
            ("unix:user:secret@/s", "unix://…"),
            ("unix:///s?pass=sec@ret", "unix://…"),
            ("http://user:secret@h/", "…"),
            ("user:secret@h", "…"),
            ("secret", "…"),
            ("", "…"),
        ] {
            assert_eq!(SecretUrl::from(url).to_string(), shown, "{url}");
            let debug = format!("{:?}", SecretUrl::from(url));
            assert_eq!(debug, format!("SecretUrl({shown})"), "{url}");
        }
    }

    #[test]
    fn error_names_the_position_in_the_list() {
        let urls = SecretUrl::list(["redis://h/", "secret"]);
        let error = urls.last().map(|url| url.invalid("a URL").to_string());
        let expected = "redis URL is `…`, expected a URL (URL 2 of the list)";
        assert_eq!(error.as_deref(), Some(expected));
    }
}
