//! Calls that wait for permits: in lines, first come, first served, and each for its own time.

mod acquire;
mod pace;
mod queue;
mod round;
mod turn;
mod wanted;

pub use acquire::Acquire;
pub(super) use queue::Queues;
#[cfg(feature = "redis")]
pub(crate) use round::Decisions;
pub(super) use wanted::Wanted;
