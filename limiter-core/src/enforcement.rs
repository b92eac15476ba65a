//! Rules outside of the store: shadow mode, `Off`, key lists, penalties and denial handling.

mod admit;
mod key_rule;
pub(crate) mod plan;
pub(crate) mod switch;

pub use crate::enforcement::admit::Admit;
pub(crate) use crate::enforcement::key_rule::KeyRule;
pub(crate) use crate::enforcement::plan::EnforcementPlan;
pub(crate) use crate::enforcement::switch::EnforcementSwitch;
