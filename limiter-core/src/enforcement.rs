//! Rules outside of the store: shadow mode, `Off`, overlays, key lists and penalties.
//!
//! [`EnforcementPlan`] sorts the limits of a call by these settings, has the store decide the
//! remaining ones, and joins the results. Tests: `tests/entry_points.rs`, `tests/key_lists.rs`.

mod blocked_decision;
mod key_rule;
mod lookup;
mod penalty;
mod permit_rules;
pub(crate) mod plan;
mod trial;

pub(crate) use crate::enforcement::key_rule::KeyRule;
pub(crate) use crate::enforcement::plan::EnforcementPlan;
