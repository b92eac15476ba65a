//! Room that is kept for the important: a bound on what is in flight in this process, of which shares are for higher classes.

mod classify;
mod future;
mod gauge;
mod layer;
mod priority;
mod service;

pub use classify::{Classify, Normal};
pub use future::ShedFuture;
pub use gauge::Place;
pub use layer::ShedLayer;
pub use priority::Priority;
pub use service::{Overloaded, Shed};
