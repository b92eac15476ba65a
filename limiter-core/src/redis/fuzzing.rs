//! The decoders of replies, for `crate::fuzzing`.

use std::sync::Arc;

use bb8_redis::redis::{RedisError, Value};

use crate::error::StoreError;
use crate::key::Namespace;
use crate::redis::script::input::{Operation, ScriptInput};
use crate::redis::script::reply;
use crate::redis::topology::slots;
use crate::request::{DecisionRequest, Verdict};

type Owner = Option<(String, u16)>;

pub(crate) fn verdicts(
    answer: &Value,
    requests: &[(DecisionRequest<'_>, usize)],
) -> Result<Vec<Vec<Result<Verdict, StoreError>>>, StoreError> {
    let namespace = Namespace::new("", "fuzz");
    let input = |(request, times): &(DecisionRequest<'_>, usize)| {
        (ScriptInput::new(request, Operation::Check, &namespace), *times)
    };
    let inputs: Vec<_> = requests.iter().map(input).collect();
    let items: Vec<_> = inputs.iter().map(|(input, times)| (input, *times)).collect();
    let verdicts = reply::verdicts(answer, &items)?;
    Ok(verdicts.into_iter().map(|verdicts| verdicts.into_vec()).collect())
}

/// Decodes a reply to CLUSTER SLOTS into the owner of each slot.
pub fn owners(answer: &Value, asked: &str) -> Result<Vec<Owner>, StoreError> {
    let owners = slots::owners(answer, asked)?;
    Ok(owners
        .into_iter()
        .map(|owner| owner.map(Arc::unwrap_or_clone))
        .collect())
}

/// Returns the address in a redirection error of the node at `asked`.
pub fn redirected(error: &RedisError, asked: (String, u16)) -> Result<(String, u16), StoreError> {
    slots::redirected(error, &Arc::new(asked)).map(Arc::unwrap_or_clone)
}

/// Returns the slot of a key.
pub fn slot(key: &str) -> u16 {
    slots::slot(key)
}
