//! Overlays: temporary changes that apply on top of the policies of a registry.
//!
//! A [`Suspension`] changes the enforcement of policies, a [`Block`] denies keys under all
//! policies. Each source of a registry has overlays; the effective [`OverlaySet`] joins them and is
//! replaced when a source changes. Limiters evaluate it by their own clock, so an overlay ends
//! without a server. A registry without overlays costs a limiter nothing: the registry informs its
//! limiters when the first one appears. Tests: `tests/entry_points.rs`,
//! `tests/contract/overlays.rs`, `tests/registry/overlays.rs`.

mod block;
mod set;
mod suspension;

pub use crate::registry::overlay::block::{Block, BlockTarget};
pub(crate) use crate::registry::overlay::set::{OverlaidLimit, OverlayRule, OverlaySet, SourceOverlays};
pub use crate::registry::overlay::suspension::{Suspension, SuspensionMode, SuspensionScope};
