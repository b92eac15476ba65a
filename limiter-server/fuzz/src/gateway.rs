//! The modules of the server that the targets check, at the paths that they have there.
//!
//! They are included by their files. A dependency on the server would instrument its web framework
//! and its databases, which takes minutes.
#![allow(dead_code, reason = "the targets use a part of the modules")]

#[path = "../../src/gateway/resp/command.rs"]
pub mod command;
#[path = "../../src/gateway/envoy/messages.rs"]
pub mod messages;
#[path = "../../src/gateway/rules.rs"]
pub mod rules;
