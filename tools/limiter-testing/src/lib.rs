//! Redis servers, clusters, sentinels and failing networks owned by the test that starts them.
//!
//! Each server runs in a fresh temporary directory, on a free loopback port, and is gone when its
//! handle is dropped or when the test process ends, also if it is killed. Nothing here needs a
//! Redis client: commands to arrange or to inspect a server go over a plain socket.
//!
//! ```
//! use limiter_testing::RedisServer;
//!
//! let server = RedisServer::start();
//! server.command(&["SET", "greeting", "hello", "PX", "60000"]);
//! assert_eq!(server.command(&["GET", "greeting"]).text(), "hello");
//! assert!(server.command(&["PTTL", "greeting"]).integer() > 0);
//! ```
//!
//! | to have | start |
//! |---|---|
//! | one server, to pause, kill and restart | [`RedisServer`] |
//! | a replica, to promote and demote | [`RedisServerBuilder::replica_of`] |
//! | a server whose clock is wrong | [`RedisServerBuilder::movable_clock`] |
//! | slots that move, primaries that fail over | [`RedisCluster`] |
//! | a primary that sentinels replace | [`RedisSentinel`] |
//! | recorded log events, metrics | [`log`], `recorder` |
//! | external formats, compared with files | [`assert_frozen`] |
//! | a network that delays, discards, cuts, refuses or redirects | [`Proxy`] |
//!
//! The program is the one `REDIS_SERVER` names, else `redis-server` or `valkey-server` on `PATH`. A
//! Unix with `sh` and `mktemp` is assumed; elsewhere the crate is empty.
#![cfg(unix)]
#![expect(
    clippy::panic,
    reason = "a test that cannot have its server has failed, and its message is all that matters"
)]

pub mod acl;
mod binary;
mod cluster;
mod frozen;
pub mod log;
mod port;
mod proxy;
#[cfg(feature = "metrics")]
pub mod recorder;
mod resp;
mod sentinel;
mod server;
#[cfg(feature = "tls")]
pub mod tls;
mod wait;
mod watchdog;

pub use cluster::{RedisCluster, RedisClusterBuilder, SlotMigration};
pub use frozen::assert_frozen;
pub use proxy::Proxy;
pub use resp::RespValue;
pub use sentinel::{RedisSentinel, RedisSentinelBuilder};
pub use server::{RedisServer, RedisServerBuilder};
