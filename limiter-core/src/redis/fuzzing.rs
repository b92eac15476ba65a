//! The decoders of replies, for `crate::fuzzing`.

use std::sync::Arc;

use bb8_redis::redis::{RedisError, Value};

use crate::error::StoreError;
use crate::key::Namespace;
use crate::redis::script::reply;
use crate::redis::script::wire::{Operation, ScriptInput};
use crate::redis::topology::slots;
use crate::request::{DecisionRequest, Verdict};

type Owner = Option<(String, u16)>;

/// Decodes the reply of the decision script to these requests, each with its number of repetitions.
pub(crate) fn verdicts(
    reply: &Value,
    requests: &[(DecisionRequest<'_>, usize)],
) -> Result<Vec<Vec<Result<Verdict, StoreError>>>, StoreError> {
    let namespace = Namespace::new("", "fuzz");
    let input = |(request, times): &(DecisionRequest<'_>, usize)| {
        (ScriptInput::new(request, Operation::Check, &namespace), *times)
    };
    let inputs: Vec<_> = requests.iter().map(input).collect();
    let items: Vec<_> = inputs.iter().map(|(input, times)| (input, *times)).collect();
    let verdicts = reply::verdicts(reply, &items)?;
    Ok(verdicts.into_iter().map(|verdicts| verdicts.into_vec()).collect())
}

/// Decodes a reply to CLUSTER SLOTS into the owner of each slot.
pub fn owners(reply: &Value, replying_node: &str) -> Result<Vec<Owner>, StoreError> {
    let owners = slots::owners(reply, replying_node)?;
    Ok(owners
        .into_iter()
        .map(|owner| owner.map(Arc::unwrap_or_clone))
        .collect())
}

/// Returns the address in a redirection error of `replying_node`.
pub fn redirected(error: &RedisError, replying_node: (String, u16)) -> Result<(String, u16), StoreError> {
    slots::redirected(error, &Arc::new(replying_node)).map(Arc::unwrap_or_clone)
}

/// Returns the slot of a key.
pub fn slot(key: &str) -> u16 {
    slots::slot(key)
}
