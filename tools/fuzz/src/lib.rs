//! Properties that hold for arbitrary input. Each module states its properties; the binaries in
//! `fuzz_targets` run them.

#![forbid(unsafe_code)]

pub mod forwarded;
pub mod name;
pub mod policy;
pub mod registry;
pub mod reply;
pub mod trace;
