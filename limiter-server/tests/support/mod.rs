//! Servers that a test starts and owns, and a small HTTP client.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test may panic and print"
)]

pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod browser;
pub(crate) mod calls;
pub(crate) mod chromium;
pub(crate) mod databases;
pub(crate) mod demand;
pub(crate) mod demo;
pub(crate) mod descriptors;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod mysql_login;
pub(crate) mod mysql_suite;
pub(crate) mod policies;
pub(crate) mod proxy;
#[cfg(feature = "rlqs")]
pub(crate) mod quota;
#[cfg(feature = "rlqs")]
pub(crate) mod quota_bucket;
pub(crate) mod resp;
pub(crate) mod rls;
pub(crate) mod saves;
pub(crate) mod server;
pub(crate) mod sockets;
pub(crate) mod stalls;
pub(crate) mod store_suite;
pub(crate) mod stores;
pub(crate) mod time;
