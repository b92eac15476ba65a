//! Keeps capacity for important requests: bounds the requests in flight in this process and
//! reserves shares for higher priorities.

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
