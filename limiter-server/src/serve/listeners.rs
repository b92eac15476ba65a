//! Binds listeners and prints their addresses.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "scripts and tests read the addresses from standard output"
)]

use std::io::Write as _;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// A bound listener and its address, in which port 0 is replaced by the selected port.
#[derive(Debug)]
pub(super) struct Listener {
    inner: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds an address.
    pub(super) async fn bind(protocol: &str, address: SocketAddr) -> Result<Self, String> {
        let failed = |error| format!("cannot listen on {address} for {protocol}: {error}");
        let inner = TcpListener::bind(address).await.map_err(failed)?;
        let address = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn into_inner(self) -> TcpListener {
        self.inner
    }
}

/// Prints each protocol and its address on a line of its own.
pub(super) fn announce(listeners: &[(&str, SocketAddr)]) {
    for (protocol, address) in listeners {
        println!("{protocol} {address}");
    }
    // A closed standard output is no reason to end.
    let _ = std::io::stdout().flush();
}

/// Prints commands that try the example.
pub(super) fn print_commands(http: SocketAddr) {
    eprintln!(
        "Try these commands:\n\
         \x20 curl http://{http}/readyz\n\
         \x20 curl -H 'content-type: application/json' -d '{{\"policy\":\"requests\",\"key\":\"ann\"}}' http://{http}/v1/check\n\
         \x20 curl -H 'content-type: application/json' -d '{{\"policy\":\"requests\",\"key\":\"ann\",\"cost\":5}}' http://{http}/v1/peek\n\
         \x20 curl http://{http}/metrics"
    );
}
