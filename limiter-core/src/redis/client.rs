//! Connections to one Redis server: addresses, sockets, TLS, pools, health and the circuit breaker.
//!
//! `node` is the entry point: it sends one script call to one server within a deadline. Everything
//! else in this directory establishes connections for it or decides whether a connection is still
//! usable.

pub(crate) mod breaker;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod dial_failures;
pub(crate) mod dns;
pub(crate) mod endpoint;
pub(crate) mod health;
pub(crate) mod node;
pub(crate) mod pools;
pub(crate) mod tls;
