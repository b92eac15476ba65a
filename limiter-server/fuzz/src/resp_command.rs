//! Commands of Redis clients: bounded, independent of how the bytes arrive, and exact; and the
//! arguments of `CL.THROTTLE`, with any name of the command.

use std::time::Duration;

use limiter_core::{Policy, Rate};

use crate::gateway::resp::command::{ParsedCommand, parse_command};
use crate::gateway::resp::parse_throttle;

/// The documented bounds of a command.
const MAX_ARGUMENTS: usize = 64;
const MAX_BYTES: usize = 64 * 1_024;
/// The largest error message, in bytes.
const MAX_ERROR: usize = 1_024;

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
                check_throttle(arguments.get(1..).unwrap_or_default());
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

/// Arguments are rejected with a short message, or are numbers of which a policy can be made or is
/// rejected. The parsed values encode to arguments with these values.
fn check_throttle(arguments: &[&[u8]]) {
    let (key, numbers) = match parse_throttle(arguments) {
        Ok(parsed) => parsed,
        Err(message) => {
            assert!(message.len() <= MAX_ERROR, "{message}");
            return;
        }
    };
    let [max_burst, count, period, _] = numbers;
    assert!(count >= 1 && period >= 1);
    if let Ok(rate) = Rate::per(count, Duration::from_secs(period)) {
        let policy = Policy::funnel("throttle")
            .capacity(max_burst.saturating_add(1))
            .rate(rate)
            .build();
        if let Ok(policy) = policy {
            assert_eq!(policy.quota().whole(), max_burst + 1);
        }
    }
    let numbers_text = numbers.map(|number| number.to_string());
    let mut encoded = vec![key.as_bytes()];
    encoded.extend(numbers_text.iter().map(String::as_bytes));
    assert_eq!(parse_throttle(&encoded), Ok((key.clone(), numbers)));
}
