//! The user of the tests, which has only the permissions of a limiter.
//!
//! Every server has this user from the start, in addition to the default user, which
//! [`command`](crate::RedisServer::command) uses. A test that passes with this user needs only
//! documented permissions.

/// Name and password of the user, in the form of a URL.
pub const LOGIN: &str = "limiter:limits";

/// The permissions that every server needs: to run the script, and the commands of the script.
pub const SCRIPT: &[&str] = &[
    "+evalsha",
    "+eval",
    "+time",
    "+get",
    "+mget",
    "+set",
    "+getrange",
    "+setrange",
    "+strlen",
    "+exists",
    "+pexpire",
    "+del",
];

/// The permission for notifications of registry changes on the channel `namespace|book`. Without
/// it, changes are found within a second by polling.
pub const REGISTRY: &[&str] = &["+publish", "+subscribe"];

/// The additional permissions for concurrency policies.
pub const CONCURRENCY: &[&str] = &[
    "+zadd",
    "+zrem",
    "+zrange",
    "+zcount",
    "+zscore",
    "+zremrangebyscore",
];

/// The additional permissions to report and to read the usage of the fleet.
pub const USAGE: &[&str] = &["+hget", "+hgetall", "+hmget", "+hset", "+hincrby"];

/// The additional permissions on the nodes of a cluster.
pub const CLUSTER: &[&str] = &["+cluster|slots", "+asking"];

/// The additional permissions on servers that sentinels monitor.
pub const SENTINEL: &[&str] = &["+role"];

/// … and all that it has to be permitted on the sentinels.
pub const AT_SENTINELS: &[&str] = &["+sentinel|get-master-addr-by-name"];

/// Returns the arguments with which a server makes the user, on all keys and channels.
pub(crate) fn user<'a>() -> impl Iterator<Item = &'a str> {
    let name = ["--user", "limiter", "on", ">limits", "~*", "&*"];
    let permitted = [SCRIPT, CONCURRENCY, REGISTRY, USAGE, CLUSTER, SENTINEL];
    name.into_iter().chain(permitted.into_iter().flatten().copied())
}

/// Returns the line of configuration with which a sentinel makes the user.
pub(crate) fn of_sentinels() -> String {
    format!("user limiter on >limits {}", AT_SENTINELS.join(" "))
}
