//! Maps errors of Redis to store errors.

use std::error::Error as _;

use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{StoreError, StoreErrorKind};

/// The codes of errors that end without a change of the call, the user or the stored values.
const TEMPORARY: [&str; 9] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        let (kind, detail) = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => (
                StoreErrorKind::Refused,
                "the key is on another node: this is a Redis Cluster, expected Limiter::redis_cluster",
            ),
            _ if error.code() == Some("WRONGTYPE") => (
                StoreErrorKind::WrongType,
                "the key contains a value of another type, which another program wrote: delete the key, or use another namespace",
            ),
            _ if lacks_permission(&error) => (
                StoreErrorKind::Refused,
                "the Redis user lacks a permission that a limiter needs, see Limiter::redis",
            ),
            _ if error
                .detail()
                .is_some_and(|detail| detail.contains("cluster support disabled")) =>
            {
                (
                    StoreErrorKind::Refused,
                    "this is no Redis Cluster, expected Limiter::redis",
                )
            }
            ErrorKind::Server(_) | ErrorKind::Extension => {
                (StoreErrorKind::Refused, "Redis refused the call")
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                (StoreErrorKind::Protocol, "malformed reply from Redis")
            }
            _ if error.is_timeout() => (StoreErrorKind::Timeout, "Redis did not answer in time"),
            _ => (StoreErrorKind::Connection, "no connection to Redis"),
        };
        StoreError::new(kind, detail).with_source(error)
    }
}

/// Returns whether a server or cluster rejects calls only for the moment: it starts, fails over, is
/// busy, or accepts no writes. The rejected call changed nothing.
pub(crate) fn is_temporary(error: &StoreError) -> bool {
    if error.kind() != StoreErrorKind::Refused {
        return false;
    }
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<RedisError>());
    // The route itself rejects a call only while nodes disagree about a slot or none owns it.
    let Some(error) = source else { return true };
    let is_code = |code: &str| TEMPORARY.contains(&code);
    // Servers before 7.0 wrap the error of a script's command into a script error.
    let is_wrapped = |detail: &str| TEMPORARY.iter().any(|code| detail.contains(&format!("-{code} ")));
    error.code().is_some_and(is_code) || error.detail().is_some_and(is_wrapped)
}

/// Returns whether the Redis user lacks a permission. Inside a script, each server version words
/// the error differently, and Redis 7.0 does not name the command.
fn lacks_permission(error: &RedisError) -> bool {
    let is_permission_error = |detail: &str| {
        let ways = [
            "NOPERM",
            "ACL failure",
            "can't run this command",
            "can't access at least one",
        ];
        ways.iter().any(|way| detail.contains(way))
    };
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || error.detail().is_some_and(is_permission_error)
}
