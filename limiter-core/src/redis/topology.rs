//! Discovery of servers: Redis Sentinel primaries, and the slots and seed nodes of a cluster.
//!
//! `dialer` opens a connection to one server, which Sentinel may have to find first. `slots` parses
//! the replies of cluster nodes; the `cluster` module above this one routes calls by them.

pub(crate) mod dialer;
pub(crate) mod seed_nodes;
pub(crate) mod sentinel;
pub(crate) mod slots;
