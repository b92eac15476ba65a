//! Servers that a test starts and owns, and a small HTTP client.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod browser;
pub(crate) mod chromium;
pub(crate) mod databases;
pub(crate) mod demo;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod proxy;
pub(crate) mod rls;
pub(crate) mod server;
pub(crate) mod store_suite;
