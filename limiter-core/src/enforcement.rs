//! Calls whose policies, or whose limiter, say more than a store knows: shadow and off, lists of
//! keys, penalties, and what becomes of a denial.

mod admit;
mod key_rule;
pub(crate) mod plan;
pub(crate) mod switch;

pub use crate::enforcement::admit::Admit;
pub(crate) use crate::enforcement::key_rule::KeyRule;
pub(crate) use crate::enforcement::plan::EnforcementPlan;
pub(crate) use crate::enforcement::switch::EnforcementSwitch;
