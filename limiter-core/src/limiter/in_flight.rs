//! What is in flight: permits that are held until they are dropped.

mod enter;
mod excused;
mod permit;

pub use enter::{Enter, Entering};
pub use permit::Permit;
