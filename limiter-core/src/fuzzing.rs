//! Private parts that arbitrary input reaches, for the targets in `fuzz/`. Compiled under `cfg(fuzzing)` alone.

use crate::algorithm::Mode;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::key::{Key, Namespace};
use crate::policy::Policy;
use crate::request::{Ask, Request};
use crate::store::redis::fuzzing as decoding;

pub use crate::store::redis::fuzzing::{owners, redirected, slot};
use bb8_redis::redis::Value;

/// The name of the Redis key of one state.
pub fn redis_name(namespace: &str, policy: &Policy, key: &Key<'_>) -> Result<String, Rejection> {
    let request = Request::new([Ask::new(policy, key)], Mode::Charge, false)?;
    let namespace = Namespace::new("", namespace);
    Ok(request
        .limits
        .iter()
        .map(|limit| {
            let (algorithm, policy) = (limit.policy.algorithm().code(), limit.policy.escaped_name());
            namespace.redis_key(algorithm, policy, limit.group(), &limit.key)
        })
        .collect())
}

/// What the script's reply to several decisions means, each on so many limits of one policy.
pub fn decisions(
    reply: &Value,
    policy: &Policy,
    limits: &[usize],
) -> Result<Vec<Result<Decision, StoreError>>, StoreError> {
    let verdicts = decoding::verdicts(reply, limits)?;
    assert_eq!(verdicts.len(), limits.len(), "one verdict for each decision");
    let decision = |(verdict, count): (Result<_, StoreError>, &usize)| {
        let keys: Vec<_> = (0..*count).map(|number| number.to_string()).collect();
        let asks = keys.iter().map(|key| Ask::new(policy, key));
        let request = Request::new(asks, Mode::Charge, true);
        #[expect(clippy::expect_used, reason = "the fuzzer is to see it")]
        let request = request.expect("1 to 16 limits");
        let decision = request.decision(verdict?, Origin::Redis);
        assert_eq!(decision.limits().len(), *count, "one outcome for each limit");
        Ok(decision)
    };
    Ok(verdicts.into_iter().zip(limits).map(decision).collect())
}
