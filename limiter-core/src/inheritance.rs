//! Conversion of stored usage after a policy change with `Inheritance::Proportional`.
//!
//! The first call after a change converts the state of its key to the new quota. `memory` converts
//! under the shard's lock; `redis/backend/inheritance.rs` converts by compare-and-set, so that
//! several replicas convert a key once.

pub(crate) mod memory;
