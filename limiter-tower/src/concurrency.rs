//! Limits concurrent requests: each request holds a permit while it is in flight.

mod admission;
mod future;
mod layer;
mod permit_body;
mod permit_handle;
mod service;

pub use future::ConcurrencyLimitFuture;
pub use layer::{BoxConcurrencyLimitLayer, ConcurrencyLimitLayer};
pub use permit_body::PermitBody;
pub use permit_handle::PermitHandle;
pub use service::ConcurrencyLimit;
