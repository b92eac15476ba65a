//! Type parameters of [`PolicyBuilder`](crate::PolicyBuilder), one for each algorithm.
//!
//! A setter exists only for the algorithms to which it applies, so a window cannot be given a
//! capacity. Programs name these types only to store or return a builder.

pub use crate::policy::{
    ConcurrencyParams, CounterWindowParams, FixedWindowParams, LevelParams, SlidingWindowParams,
};
