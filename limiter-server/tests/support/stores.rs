//! Tests on limits in the process and on limits in Redis. A failure names the store.
//!
//! Each function starts a server for a store: it calls `start` with the arguments of the store.

use limiter_testing::RedisServer;

use super::server::Server;

/// A decision deadline that does not end on a loaded machine.
pub(crate) const PATIENT: [&str; 2] = ["--decision-deadline", "30s"];

/// Returns the arguments of a server for limits in Redis, with a [`PATIENT`] deadline.
pub(crate) fn redis_args(url: &str) -> [&str; 4] {
    let [option, deadline] = PATIENT;
    ["--redis", url, option, deadline]
}

/// Runs a test on each store.
pub(crate) fn on_each_store(start: impl Fn(&[&str]) -> Server, test: impl Fn(&Server)) {
    in_process(&start, &test);
    on_redis(&start, &test);
}

/// Runs a test on limits in the process.
pub(crate) fn in_process(start: impl Fn(&[&str]) -> Server, test: impl Fn(&Server)) {
    let _name = StoreName("the process");
    test(&start(&[]));
}

/// Runs a test on limits in Redis.
pub(crate) fn on_redis(start: impl Fn(&[&str]) -> Server, test: impl Fn(&Server)) {
    let _name = StoreName("Redis");
    let redis = RedisServer::start();
    test(&start(&redis_args(&redis.url())));
}

/// Runs a test on two servers with one Redis, for ids of another server.
pub(crate) fn on_two_servers(start: impl Fn(&[&str]) -> Server, test: impl Fn(&Server, &Server)) {
    let _name = StoreName("Redis, with two servers");
    let redis = RedisServer::start();
    let url = redis.url();
    let [first, second] = [(); 2].map(|()| start(&redis_args(&url)));
    test(&first, &second);
}

/// The store of a test, which the output contains if the test fails.
struct StoreName(&'static str);

impl Drop for StoreName {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the test failed on limits in {}", self.0);
        }
    }
}
