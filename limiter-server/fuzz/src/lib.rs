//! Properties of limiter-server for arbitrary input. The binaries in `fuzz_targets` check them.

#![forbid(unsafe_code)]

pub mod descriptors;
pub mod gateway;
pub mod resp_command;
pub mod rules;
