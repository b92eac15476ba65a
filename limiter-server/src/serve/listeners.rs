//! Prints the addresses of the listeners, and commands to try.
#![expect(clippy::print_stderr, reason = "standard output has the addresses only")]

use std::io::Write as _;

use crate::settings::{ListenAddress, TlsSettings};

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
pub(super) fn print_commands(http: &ListenAddress, tls: Option<&TlsSettings>) {
    let (curl, url) = match http {
        ListenAddress::Unix(path) => {
            let path = path.display().to_string().replace('\'', "'\\''");
            (
                format!("curl --unix-socket '{path}'"),
                "http://localhost".to_owned(),
            )
        }
        // The certificate of an example is rarely one that the system trusts.
        ListenAddress::Tcp(address) if tls.is_some() => ("curl -k".to_owned(), format!("https://{address}")),
        ListenAddress::Tcp(address) => ("curl".to_owned(), format!("http://{address}")),
    };
    let post = format!("{curl} -H 'content-type: application/json' -d");
    eprintln!(
        "Try these commands:\n\
         \x20 {curl} {url}/readyz\n\
         \x20 {post} '{{\"policy\":\"requests\",\"key\":\"ann\"}}' {url}/v1/check\n\
         \x20 {post} '{{\"policy\":\"requests\",\"key\":\"ann\",\"cost\":5}}' {url}/v1/peek\n\
         \x20 {curl} {url}/metrics"
    );
}
