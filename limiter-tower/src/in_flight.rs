//! Requests that hold a permit for as long as they are in flight.

mod admit;
mod body;
mod future;
mod held;
mod layer;
mod service;

pub use body::PermitBody;
pub use future::InFlightFuture;
pub use held::Held;
pub use layer::{BoxInFlightLayer, InFlightLayer};
pub use service::InFlight;
