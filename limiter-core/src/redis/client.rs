//! Connections to one Redis server: addresses, sockets, TLS, health and the circuit breaker.
//!
//! `dial` opens a `connection` to an `endpoint`; `health` and `breaker` decide from the results of
//! calls whether a connection and its server are still usable.

pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod dns;
pub(crate) mod endpoint;
pub(crate) mod failure;
pub(crate) mod tls;
