//! Commands of Redis clients: bounded, independent of how the bytes arrive, and exact.

use crate::gateway::command::{ParsedCommand, parse_command};

/// The documented bounds of a command.
const MAX_ARGUMENTS: usize = 64;
const MAX_BYTES: usize = 64 * 1_024;

/// Checks all commands at the start of some bytes.
pub fn check(mut bytes: &[u8]) {
    loop {
        match parse_command(bytes, MAX_BYTES) {
            Ok(ParsedCommand::Complete {
                arguments,
                bytes: length,
            }) => {
                assert!(arguments.len() <= MAX_ARGUMENTS && length <= MAX_BYTES);
                check_arrival(bytes, length);
                check_encoding(&arguments, length);
                bytes = &bytes[length..];
            }
            // A command that is not complete within the bound must be rejected.
            Ok(ParsedCommand::Incomplete) => {
                assert!(bytes.len() <= MAX_BYTES, "{}", bytes.len());
                return;
            }
            Err(error) => {
                assert!(!error.to_string().contains(['\r', '\n']));
                return;
            }
        }
    }
}

/// Every shorter prefix of a command is incomplete.
fn check_arrival(bytes: &[u8], length: usize) {
    let ends = (0..length.min(64)).chain(length.saturating_sub(64)..length);
    for end in ends {
        assert_eq!(
            parse_command(&bytes[..end], MAX_BYTES),
            Ok(ParsedCommand::Incomplete),
            "{end} of {length}"
        );
    }
}

/// The arguments encode to a command with the same arguments.
fn check_encoding(arguments: &[&[u8]], length: usize) {
    let mut encoded = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        encoded.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        encoded.extend_from_slice(argument);
        encoded.extend_from_slice(b"\r\n");
    }
    // Lengths may have leading zeros.
    assert!(encoded.len() <= length);
    let expected = ParsedCommand::Complete {
        arguments: arguments.to_vec(),
        bytes: encoded.len(),
    };
    assert_eq!(parse_command(&encoded, MAX_BYTES), Ok(expected));
}
