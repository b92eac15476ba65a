//! Commands of Redis clients.

/// A command as an array of texts.
pub(crate) fn encode(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).bytes());
    }
    bytes
}
