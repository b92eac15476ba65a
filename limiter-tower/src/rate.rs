//! Limits the rate of requests to a service.
//!
//! [`layer`] builds [`service`]; the service extracts the key and decides with [`config`] if it can
//! do so at once. Otherwise [`future`] executes the [`next_action`] of the decision, and
//! [`response_hooks`] completes the inner service's response. [`typestate`] holds the layer's type
//! parameters and [`extractors`] the extractors that they combine to.

pub(crate) mod config;
pub(crate) mod configured_cost;
pub(crate) mod extractors;
pub(crate) mod future;
pub(crate) mod layer;
pub(crate) mod next_action;
pub(crate) mod policies;
pub(crate) mod response_hooks;
pub(crate) mod service;
pub(crate) mod typestate;
pub(crate) mod wait;

pub use future::ResponseFuture;
pub use layer::{BoxRateLimitLayer, RateLimitLayer};
pub use service::RateLimit;
