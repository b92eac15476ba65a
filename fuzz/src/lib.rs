//! What arbitrary input must not break. Each module states what holds for any input; the binaries
//! in `fuzz_targets` feed it.

#![forbid(unsafe_code)]

pub mod forwarded;
pub mod name;
pub mod policy;
pub mod registry;
pub mod reply;
pub mod trace;
