//! The protocol, as far as arranging and inspecting a server in a test needs it.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Far above the duration of any test command; only a paused server is slower.
pub(crate) const PATIENTLY: Duration = Duration::from_secs(10);

/// Timeout for repeated queries to many servers, some of which may be paused.
pub(crate) const BRIEFLY: Duration = Duration::from_secs(1);

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RespValue {
    /// No value: a missing key, a missing field.
    Nil,
    /// A number.
    Integer(i64),
    /// A status line, such as `OK`.
    Status(String),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// A list of replies.
    Array(Vec<RespValue>),
    /// An error, with its code in front, such as `WRONGTYPE …`.
    Error(String),
}

impl RespValue {
    /// Returns the number.
    ///
    /// # Panics
    /// If the reply is neither a number nor a text with a number.
    #[must_use]
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Self::Integer(value) => *value,
            other => other
                .text()
                .parse()
                .unwrap_or_else(|_| panic!("expected a number, got {other:?}")),
        }
    }

    /// Returns the text of a status or of a string.
    ///
    /// # Panics
    /// If the reply is neither a status nor a string, or not UTF-8.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) => text.clone(),
            other => String::from_utf8(other.bytes().to_vec())
                .unwrap_or_else(|_| panic!("expected UTF-8 text, got {other:?}")),
        }
    }

    /// Returns the bytes of a string.
    ///
    /// # Panics
    /// If the reply is not a string.
    #[must_use]
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bulk(bytes) => bytes,
            other => panic!("expected a string, got {other:?}"),
        }
    }

    /// Returns the elements of a list.
    ///
    /// # Panics
    /// If the reply is not a list.
    #[must_use]
    #[track_caller]
    pub fn items(&self) -> &[RespValue] {
        match self {
            Self::Array(items) => items,
            other => panic!("expected a list, got {other:?}"),
        }
    }

    /// Returns whether the reply is nil.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }
}

/// Sends one command on a new connection, which a server restart cannot have broken.
pub(crate) fn call<A: AsRef<[u8]>>(port: u16, args: &[A], timeout: Duration) -> io::Result<RespValue> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(&encode(args))?;
    decode(&mut BufReader::new(stream))
}

fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut wire = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        wire.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        wire.extend_from_slice(arg);
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

fn decode(input: &mut impl BufRead) -> io::Result<RespValue> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(line))?;
    let number = || rest.parse::<i64>().map_err(|_| malformed(line));
    Ok(match kind {
        "+" => RespValue::Status(rest.to_owned()),
        "-" => RespValue::Error(rest.to_owned()),
        ":" => RespValue::Integer(number()?),
        // A negative length is how this protocol writes "no value".
        "$" => match u64::try_from(number()?) {
            Ok(length) => RespValue::Bulk(read_bulk(input, length)?),
            Err(_) => RespValue::Nil,
        },
        "*" => match u64::try_from(number()?) {
            Ok(length) => RespValue::Array((0..length).map(|_| decode(input)).collect::<io::Result<_>>()?),
            Err(_) => RespValue::Nil,
        },
        _ => return Err(malformed(line)),
    })
}

fn read_bulk(input: &mut impl BufRead, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length + 2).read_to_end(&mut bytes)?;
    match bytes.strip_suffix(b"\r\n") {
        Some(bulk) if bulk.len() as u64 == length => Ok(bulk.to_vec()),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn malformed(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not a reply: `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_replies_are_read() {
        let wire = b"*5\r\n:-7\r\n$4\r\na\r\nb\r\n+OK\r\n$-1\r\n*1\r\n-ERR no\r\n";
        let expected = RespValue::Array(vec![
            RespValue::Integer(-7),
            RespValue::Bulk(b"a\r\nb".to_vec()),
            RespValue::Status("OK".to_owned()),
            RespValue::Nil,
            RespValue::Array(vec![RespValue::Error("ERR no".to_owned())]),
        ]);
        assert!(decode(&mut &wire[..]).is_ok_and(|value| value == expected));
    }

    #[test]
    fn truncated_reply_is_rejected() {
        for wire in [&b""[..], b"+OK", b"$5\r\nab\r\n", b"*2\r\n:1\r\n"] {
            let error = decode(&mut &wire[..]).err();
            assert_eq!(
                error.map(|error| error.kind()),
                Some(ErrorKind::UnexpectedEof),
                "{wire:?}"
            );
        }
    }

    #[test]
    fn malformed_reply_is_rejected() {
        for wire in [&b"\r\n"[..], b"?\r\n", b":x\r\n", b"HTTP/1.1 400\r\n"] {
            let error = decode(&mut &wire[..]).err();
            assert_eq!(
                error.map(|error| error.kind()),
                Some(ErrorKind::InvalidData),
                "{wire:?}"
            );
        }
    }

    #[test]
    fn arguments_are_written_as_raw_bytes() {
        assert_eq!(
            encode(&[&b"SET"[..], b"\xff\r\n"]),
            b"*2\r\n$3\r\nSET\r\n$3\r\n\xff\r\n\r\n"
        );
    }
}
