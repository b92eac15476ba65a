//! Discovery of the server that owns a key: Redis Cluster slots and Redis Sentinel primaries.
//!
//! `cluster` maps slots to nodes and refreshes the map after redirections and failures; `sentinel`
//! finds the current primary. A standalone server needs neither.

pub(crate) mod cluster;
pub(crate) mod seed_nodes;
pub(crate) mod sentinel;
pub(crate) mod slot_map_refresh;
pub(crate) mod slots;
