//! Keeps capacity for important requests: bounds the requests in flight in this process and
//! reserves shares for higher priorities.
//!
//! A [`LoadShedLayer`](crate::LoadShedLayer) classifies each request ([`Classify`]) and counts it
//! until its response body has ended. One counter holds all requests in flight, and each
//! [`Priority`](crate::Priority) has a bound of its own on this counter. A request above the bound
//! of its priority is answered with 503. The layer uses no limiter and no store.

// Tests: `tests/load.rs`, and `in_flight_counter.rs` for the bounds.

mod body;
mod classify;
mod config;
pub(crate) mod future;
mod in_flight_counter;
pub(crate) mod layer;
pub(crate) mod priority;
pub(crate) mod service;

pub use body::LoadShedBody;
pub use classify::{Classify, DefaultPriority};
pub use in_flight_counter::InFlightGuard;
