//! The user as whom tests log in: it may do what a limiter needs, and nothing else.
//!
//! Every server has it from the start, beside the default user, as whom
//! [`command`](crate::RedisServer::command) goes on. A test that passes as this user needs no
//! permission that the documentation does not name.

/// Name and password of the user, as they stand in a URL.
pub const LOGIN: &str = "limiter:limits";

/// What a limiter has to be permitted on every server: to run its script, and what the script does.
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

/// What has the changes of a registry be told at once, on the channel `namespace|book`; without it
/// they are found out within a second.
pub const REGISTRY: &[&str] = &["+publish", "+subscribe"];

/// What it has to be permitted besides where policies of concurrency are entered.
pub const CONCURRENCY: &[&str] = &[
    "+zadd",
    "+zrem",
    "+zrange",
    "+zcount",
    "+zscore",
    "+zremrangebyscore",
];

/// What it has to be permitted besides on the nodes of a cluster.
pub const CLUSTER: &[&str] = &["+cluster|slots", "+asking"];

/// What it has to be permitted besides on servers that sentinels watch over …
pub const SENTINEL: &[&str] = &["+role"];

/// … and all that it has to be permitted on the sentinels.
pub const AT_SENTINELS: &[&str] = &["+sentinel|get-master-addr-by-name"];

/// The arguments with which a server makes the user, on all keys and channels.
pub(crate) fn user<'a>() -> impl Iterator<Item = &'a str> {
    let name = ["--user", "limiter", "on", ">limits", "~*", "&*"];
    let permitted = [SCRIPT, CONCURRENCY, REGISTRY, CLUSTER, SENTINEL];
    name.into_iter().chain(permitted.into_iter().flatten().copied())
}

/// The line of configuration with which a sentinel makes the user.
pub(crate) fn of_sentinels() -> String {
    format!("user limiter on >limits {}", AT_SENTINELS.join(" "))
}
