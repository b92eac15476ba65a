//! What is told of a call afterwards: refunds, charges, and reservations that are settled.

mod refund;
mod reserve;

pub use refund::{Charge, Refund};
pub use reserve::{Reservation, Reserve};
