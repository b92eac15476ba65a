//! A rate limit service on top of limiter-core: a gateway, a control plane and an admin UI.
//!
//! `limiter-server serve` reads [`settings`] from flags, the environment and `limiter-server.toml`,
//! builds one [`Limiter`](limiter_core::Limiter), follows its policies and rules, and serves the
//! protocols of [`gateway`]: Envoy, HTTP and Redis clients. With a database, [`store`] contains the
//! policies with their history, [`publish`] transfers them to the registry in force, and [`admin`]
//! serves an API and pages. [`replay`] computes the decisions of policies for recorded traffic.
//!
//! The crate uses the public API of limiter-core and limiter-tower only.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test may panic"
    )
)]

pub mod access;
pub mod admin;
pub mod cli;
pub mod demo;
pub mod denials;
mod error_text;
pub mod gateway;
pub mod host_name;
pub mod import;
mod key_text;
pub mod library_usage;
pub mod listener;
pub mod overlay_text;
pub mod policy_text;
mod priority;
pub mod publish;
pub mod replay;
pub mod retention;
pub mod secret;
pub mod serve;
pub mod settings;
pub mod store;
pub mod usage;
mod webhook;
