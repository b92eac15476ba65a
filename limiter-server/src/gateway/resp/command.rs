//! Parses commands: arrays of bulk strings.
//!
//! The parser is our own: clients send one of RESP's types only, and every length must be checked
//! before its bytes are buffered. The crates that parse RESP accept all types of replies, nested
//! without a bound, and build on a parser library. Inline commands are not accepted. No client
//! sends them, and without them a web page cannot send commands by an HTTP request. Tests: below.

use std::fmt;

/// The largest number of arguments of a command.
const MAX_ARGUMENTS: usize = 64;
/// The largest number of digits of a length.
const MAX_LENGTH_DIGITS: usize = 9;

/// The command at the start of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedCommand<'a> {
    /// More bytes are needed.
    Incomplete,
    /// A whole command.
    Complete {
        /// The name and the arguments; empty for an empty array, which has no reply.
        arguments: Vec<&'a [u8]>,
        /// The size of the command.
        bytes: usize,
    },
}

/// Framing that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// Another byte at the start of an element.
    UnexpectedByte {
        /// The byte that is required.
        expected: char,
        /// The byte in the buffer.
        actual: u8,
    },
    /// A length that is not a plain number.
    InvalidLength,
    /// No line break after a length or a string.
    MissingLineBreak,
    /// More arguments than accepted.
    TooManyArguments(usize),
    /// A command above the accepted size.
    TooLarge {
        /// The size so far.
        bytes: usize,
        /// The largest accepted size.
        max: usize,
    },
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedByte { expected, actual } => {
                write!(f, "expected '{expected}', got '{}'", actual.escape_ascii())
            }
            Self::InvalidLength => write!(f, "expected a length of 1 to {MAX_LENGTH_DIGITS} digits"),
            Self::MissingLineBreak => f.write_str("expected CR LF after a length or a string"),
            Self::TooManyArguments(count) => {
                write!(
                    f,
                    "the command has {count} arguments, expected at most {MAX_ARGUMENTS}"
                )
            }
            Self::TooLarge { bytes, max } => {
                write!(
                    f,
                    "the command has at least {bytes} bytes, expected at most {max}"
                )
            }
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Parses the command at the start of a buffer, which has at most `max` bytes with its framing.
///
/// # Errors
///
/// [`ProtocolError`] as soon as the buffer cannot become a command, and before the bytes of a
/// command that is too large.
pub fn parse_command(buffer: &[u8], max: usize) -> Result<ParsedCommand<'_>, ProtocolError> {
    let mut rest = buffer;
    let Some(count) = take_length(&mut rest, b'*')? else {
        return Ok(ParsedCommand::Incomplete);
    };
    if count > MAX_ARGUMENTS {
        return Err(ProtocolError::TooManyArguments(count));
    }
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(length) = take_length(&mut rest, b'$')? else {
            return Ok(ParsedCommand::Incomplete);
        };
        let bytes = buffer.len() - rest.len() + length + 2;
        if bytes > max {
            return Err(ProtocolError::TooLarge { bytes, max });
        }
        let Some((argument, after)) = rest.split_at_checked(length) else {
            return Ok(ParsedCommand::Incomplete);
        };
        if !take_line_break(after)? {
            return Ok(ParsedCommand::Incomplete);
        }
        arguments.push(argument);
        rest = after.get(2..).unwrap_or_default();
    }
    Ok(ParsedCommand::Complete {
        arguments,
        bytes: buffer.len() - rest.len(),
    })
}

/// Takes a type and a length with their line break; `None` if more bytes are needed.
fn take_length(rest: &mut &[u8], kind: u8) -> Result<Option<usize>, ProtocolError> {
    let Some((first, after)) = rest.split_first() else {
        return Ok(None);
    };
    if *first != kind {
        return Err(ProtocolError::UnexpectedByte {
            expected: char::from(kind),
            actual: *first,
        });
    }
    let mut length: usize = 0;
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit());
    let mut count = 0;
    for digit in digits {
        count += 1;
        if count > MAX_LENGTH_DIGITS {
            return Err(ProtocolError::InvalidLength);
        }
        length = length * 10 + usize::from(digit - b'0');
    }
    let after = after.get(count..).unwrap_or_default();
    if count == 0 && !after.is_empty() {
        return Err(ProtocolError::InvalidLength);
    }
    if !take_line_break(after)? {
        return Ok(None);
    }
    *rest = after.get(2..).unwrap_or_default();
    Ok(Some(length))
}

/// Returns whether the bytes start with CR LF; false if more bytes are needed.
fn take_line_break(rest: &[u8]) -> Result<bool, ProtocolError> {
    match rest {
        [b'\r', b'\n', ..] => Ok(true),
        [] | [b'\r'] => Ok(false),
        _ => Err(ProtocolError::MissingLineBreak),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64 * 1_024;
    const THROTTLE: &[u8] = b"*2\r\n$4\r\nPING\r\n$0\r\n\r\n";

    #[test]
    fn prefixes_of_a_command_are_incomplete() {
        for end in 0..THROTTLE.len() {
            assert_eq!(
                parse_command(&THROTTLE[..end], MAX),
                Ok(ParsedCommand::Incomplete),
                "{end}"
            );
        }
        let twice = [THROTTLE, THROTTLE].concat();
        let expected = ParsedCommand::Complete {
            arguments: vec![b"PING", b""],
            bytes: THROTTLE.len(),
        };
        assert_eq!(parse_command(&twice, MAX), Ok(expected));
    }

    #[test]
    fn arguments_can_contain_any_bytes() {
        let command = b"*1\r\n$5\r\n\r\n\0$\xff\r\n";
        let expected = ParsedCommand::Complete {
            arguments: vec![b"\r\n\0$\xff"],
            bytes: command.len(),
        };
        assert_eq!(parse_command(command, MAX), Ok(expected));
    }

    #[test]
    fn invalid_framing_is_rejected_before_it_is_buffered() {
        let unexpected = |expected, actual| ProtocolError::UnexpectedByte { expected, actual };
        for (bytes, expected) in [
            (&b"PING\r\n"[..], unexpected('*', b'P')),
            (b"*1\r\n:4\r\n", unexpected('$', b':')),
            (b"*-1\r\n", ProtocolError::InvalidLength),
            (b"*1\r\n$-1\r\n", ProtocolError::InvalidLength),
            (b"*\r\n", ProtocolError::InvalidLength),
            (b"*0000000001\r\n", ProtocolError::InvalidLength),
            (b"*1\n", ProtocolError::MissingLineBreak),
            (b"*1\r\n$1\r\nab\r\n", ProtocolError::MissingLineBreak),
            (b"*65\r\n", ProtocolError::TooManyArguments(65)),
            (
                b"*1\r\n$65536\r\n",
                ProtocolError::TooLarge {
                    bytes: 65_550,
                    max: MAX,
                },
            ),
        ] {
            assert_eq!(
                parse_command(bytes, MAX),
                Err(expected),
                "{}",
                bytes.escape_ascii()
            );
        }
    }

    #[test]
    fn sum_of_arguments_is_bounded() {
        let argument = [b"$32000\r\n", &vec![b'x'; 32_000][..], b"\r\n"].concat();
        let command = [b"*3\r\n", &argument[..], &argument[..], b"$32000\r\n"].concat();
        assert!(matches!(
            parse_command(&command, MAX),
            Err(ProtocolError::TooLarge { .. })
        ));
    }
}
