//! The address of the connected peer, as servers provide it.
//!
//! Each server stores the address in another type. [`Connection`] searches the types of axum, of
//! tonic and of axum's tests, then a plain `SocketAddr`; a custom function replaces the search.
//! Mapped IPv4 addresses are converted, as dual-stack listeners report them.
//!
//! Invariant: an unknown peer is an error that states the fix, never a common key. Tests:
//! `tests/http/keys.rs`, `tests/grpc/keys.rs`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::{Extensions, StatusCode};
use limiter_core::__private::ReportThrottle;

use super::extraction::KeyRejection;

/// Reads the peer's address from a request's extensions.
#[derive(Clone, Copy, Default)]
pub(super) struct Connection {
    /// A custom source, in place of the known extensions.
    elsewhere: Option<fn(&Extensions) -> Option<IpAddr>>,
}

impl Connection {
    pub(super) fn peer_from(find: fn(&Extensions) -> Option<IpAddr>) -> Self {
        Self {
            elsewhere: Some(find),
        }
    }

    /// Returns the address. An IPv4 address that is mapped into IPv6, as dual-stack listeners
    /// report it, is converted.
    pub(super) fn peer(self, extensions: &Extensions) -> Option<IpAddr> {
        let peer = match self.elsewhere {
            Some(find) => find(extensions),
            None => known(extensions),
        };
        peer.map(|peer| peer.to_canonical())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.elsewhere.is_some() {
            "Custom"
        } else {
            "Default"
        })
    }
}

fn known(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    // Also set behind TLS, in addition to tonic's TLS information.
    #[cfg(feature = "tonic")]
    if let Some(tcp) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return tcp.remote_addr().map(|peer| peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo(peer)) =
        extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// Returns the rejection of a request whose peer address the server does not provide. Only the
/// server's author can fix this.
#[cold]
pub(super) fn unknown_peer() -> KeyRejection {
    static LOGGED: ReportThrottle = ReportThrottle::new();
    if LOGGED.is_due() {
        tracing::error!(
            "the peer's address is missing: serve the router with \
             `into_make_service_with_connect_info::<SocketAddr>()` and the feature `axum` of limiter-tower, tonic's server \
             with its feature `tonic`, or insert a `SocketAddr` into the request's extensions"
        );
    }
    KeyRejection::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the server did not identify the client",
    )
}
