//! Envoy's rate limit service.

#[path = "../../../src/gateway/envoy/messages.rs"]
pub mod messages;
