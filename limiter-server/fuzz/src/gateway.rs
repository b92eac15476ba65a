//! The modules of the server that the targets check, at the paths that they have there.
//!
//! They are included by their files. A dependency on the server would instrument its web framework
//! and its databases, which takes minutes.
#![allow(dead_code, reason = "the targets use a part of the modules")]

pub mod envoy;
pub mod resp;
#[path = "../../src/gateway/rules.rs"]
pub mod rules;
