//! Failures of a call to one server.

use bb8_redis::redis::RedisError;

use crate::error::StoreError;

/// Failure of a call to a node.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    Unreachable(StoreError),
    /// The server replied with an error, or the connection failed.
    Answered(RedisError),
    /// The script reported that it cannot decide, or its reply is malformed.
    Undecided(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(error) | Failure::Undecided(error) => error,
            Failure::Answered(error) => error.into(),
        }
    }
}
