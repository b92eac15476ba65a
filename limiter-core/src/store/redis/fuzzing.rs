//! The decoders of answers, for `crate::fuzzing`.

use std::sync::Arc;

use bb8_redis::redis::{RedisError, Value};

use super::{slots, wire};
use crate::error::StoreError;
use crate::request::Verdict;

type Owner = Option<(String, u16)>;

pub(crate) fn verdicts(
    reply: &Value,
    limits: &[usize],
) -> Result<Vec<Result<Verdict, StoreError>>, StoreError> {
    wire::verdicts(reply, limits)
}

/// Who owns each slot, by an answer to CLUSTER SLOTS.
pub fn owners(answer: &Value, asked: &str) -> Result<Vec<Owner>, StoreError> {
    let owners = slots::owners(answer, asked)?;
    Ok(owners
        .into_iter()
        .map(|owner| owner.map(Arc::unwrap_or_clone))
        .collect())
}

/// The address to which an error of the node at `asked` points.
pub fn redirected(error: &RedisError, asked: (String, u16)) -> Result<(String, u16), StoreError> {
    slots::redirected(error, &Arc::new(asked)).map(Arc::unwrap_or_clone)
}

/// The slot of a key.
pub fn slot(key: &str) -> u16 {
    slots::slot(key)
}
