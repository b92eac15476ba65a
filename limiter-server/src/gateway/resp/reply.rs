//! Replies and their encoding in both versions of RESP. Tests: below.

use std::io::Write as _;

use crate::access::AccessDenial;

/// The largest number of characters of an error message.
const MAX_ERROR_CHARS: usize = 512;

/// A version of RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// The default.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A status without a line break.
    Simple(&'static str),
    /// A message that starts with its code.
    Error(String),
    /// A number.
    Integer(i64),
    /// A text.
    Bulk(Vec<u8>),
    /// Elements in order.
    Array(Vec<Reply>),
    /// Pairs; a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// No value.
    Null,
}

impl Reply {
    /// The reply to a command that succeeded.
    pub(super) const OK: Self = Self::Simple("OK");

    /// Returns an error on one line of bounded length.
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self::Error(message.into())
    }

    /// Returns a text.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(text.into().into_bytes())
    }

    /// Appends the encoding.
    pub(super) fn write(&self, protocol: Protocol, to: &mut Vec<u8>) {
        match self {
            Self::Simple(status) => line(to, '+', status),
            Self::Error(message) => {
                let message: String = message.chars().take(MAX_ERROR_CHARS).collect();
                line(to, '-', message.replace(['\r', '\n'], " "));
            }
            Self::Integer(number) => line(to, ':', number),
            Self::Bulk(bytes) => {
                line(to, '$', bytes.len());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Self::Array(elements) => {
                line(to, '*', elements.len());
                elements.iter().for_each(|element| element.write(protocol, to));
            }
            Self::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => line(to, '*', 2 * pairs.len()),
                    Protocol::Resp3 => line(to, '%', pairs.len()),
                }
                for (name, value) in pairs {
                    name.write(protocol, to);
                    value.write(protocol, to);
                }
            }
            Self::Null => to.extend_from_slice(match protocol {
                Protocol::Resp2 => b"$-1\r\n",
                Protocol::Resp3 => b"_\r\n",
            }),
        }
    }
}

/// Returns the error of a client without the needed scope, or without valid credentials.
pub(super) fn access_error(denial: &AccessDenial) -> Reply {
    match denial {
        AccessDenial::CredentialsMissing => {
            Reply::error("NOAUTH Authentication required, expected AUTH with a token first")
        }
        denial if denial.is_forbidden() => Reply::error(format!("NOPERM {denial}")),
        denial if denial.is_unavailable() => Reply::error(format!("UNAVAILABLE {denial}")),
        denial => Reply::error(format!("NOAUTH {denial}")),
    }
}

fn line(to: &mut Vec<u8>, kind: char, value: impl std::fmt::Display) {
    // Writing to a vector does not fail.
    let _ = write!(to, "{kind}{value}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, protocol: Protocol) -> String {
        let mut bytes = Vec::new();
        reply.write(protocol, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn maps_and_nulls_follow_the_version() {
        let map = Reply::Map(vec![(Reply::text("a"), Reply::Integer(-1))]);
        assert_eq!(written(&map, Protocol::Resp2), "*2\r\n$1\r\na\r\n:-1\r\n");
        assert_eq!(written(&map, Protocol::Resp3), "%1\r\n$1\r\na\r\n:-1\r\n");
        assert_eq!(written(&Reply::Null, Protocol::Resp2), "$-1\r\n");
        assert_eq!(written(&Reply::Null, Protocol::Resp3), "_\r\n");
    }

    #[test]
    fn error_stays_on_one_short_line() {
        let error = Reply::error(format!("ERR a\r\nb{}", "é".repeat(1_000)));
        let text = written(&error, Protocol::Resp2);
        assert!(text.starts_with("-ERR a  bé"), "{text}");
        assert_eq!(text.chars().count(), MAX_ERROR_CHARS + 3);
        assert_eq!(text.matches('\n').count(), 1);
    }
}
