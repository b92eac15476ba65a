//! Prints the addresses of the listeners, and commands to try.
#![expect(clippy::print_stderr, reason = "standard output has the addresses only")]

use std::io::Write as _;

use crate::settings::ListenAddress;

/// Prints each protocol and its address on a line of its own.
pub(super) fn announce(listeners: &[(&str, ListenAddress)]) {
    let lines = listeners
        .iter()
        .map(|(protocol, address)| format!("{protocol} {address}\n"));
    let mut output = std::io::stdout().lock();
    // A closed standard output is no reason to end.
    let _ = output.write_all(lines.collect::<String>().as_bytes());
    let _ = output.flush();
}

/// Prints commands that try the example.
pub(super) fn print_commands(http: &ListenAddress) {
    eprintln!(
        "Try these commands:\n\
         \x20 curl http://{http}/readyz\n\
         \x20 curl -H 'content-type: application/json' -d '{{\"policy\":\"requests\",\"key\":\"ann\"}}' http://{http}/v1/check\n\
         \x20 curl -H 'content-type: application/json' -d '{{\"policy\":\"requests\",\"key\":\"ann\",\"cost\":5}}' http://{http}/v1/peek\n\
         \x20 curl http://{http}/metrics"
    );
}
