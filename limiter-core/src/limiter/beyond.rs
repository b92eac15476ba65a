//! Calls whose policies, or whose limiter, say more than a store knows: shadow and off, lists of keys, penalties, and what
//! becomes of a denial.

mod admit;
mod key_rule;
mod mode;
mod punish;
mod sorted;

pub use admit::Admit;
pub(super) use key_rule::KeyRule;
pub(super) use mode::Current;
pub(super) use sorted::Sorted;
