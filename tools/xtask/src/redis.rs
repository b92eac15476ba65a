//! Installs a Redis server for the tests if none exists.

use std::env;

use crate::packages::{Package, on_path};

/// The programs that `limiter-testing` searches for.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

const SERVER: Package = Package {
    name: "redis-server",
    found: || NAMES.iter().any(|name| on_path(name)),
    // Some distributions have replaced Redis with Valkey.
    packages: |manager| match manager {
        "apt-get" => &["redis-server", "valkey-server"],
        _ => &["redis", "valkey"],
    },
    advice: "install Redis 6.2 or later, or name its server program in REDIS_SERVER",
};

/// Finds a server program or installs one.
pub(crate) fn ensure() -> Result<(), String> {
    match env::var_os("REDIS_SERVER").filter(|named| !named.is_empty()) {
        Some(named) if on_path(&named.to_string_lossy()) => Ok(()),
        Some(named) => Err(format!(
            "REDIS_SERVER is `{}`, which does not exist",
            named.display()
        )),
        None => SERVER.ensure(),
    }
}
