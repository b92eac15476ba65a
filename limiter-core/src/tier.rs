//! The tiers between the handle and the store, each able to answer or to pass on.

pub(crate) mod guard;
