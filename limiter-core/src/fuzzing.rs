//! Access to private decoders of external input, for the targets in `tools/fuzz/`. Compiled under
//! `cfg(fuzzing)` only.

use bb8_redis::redis::Value;

use crate::algorithm::Mode;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::key::{Key, Namespace};
use crate::policy::Policy;
use crate::redis::fuzzing as decoding;
pub use crate::redis::fuzzing::{owners, redirected, slot};
use crate::request::{DecisionRequest, LimitRequest};

/// Returns the name of the Redis key of one state.
pub fn redis_name(namespace: &str, policy: &Policy, key: &Key<'_>) -> Result<String, Rejection> {
    let request = DecisionRequest::new([LimitRequest::new(policy, key)], Mode::Charge, false)?;
    let namespace = Namespace::new("", namespace);
    Ok(request
        .limits
        .iter()
        .map(|limit| {
            let (algorithm, policy) = (limit.policy.code(), limit.policy.escaped_name());
            namespace.redis_key(algorithm, policy, limit.group(), &limit.key)
        })
        .collect())
}

/// Decodes the script's reply to several inputs. Each input has a number of limits of one policy,
/// and a number of equal requests. Returns the decisions grouped by input.
pub fn decisions(
    reply: &Value,
    policy: &Policy,
    inputs: &[(usize, usize)],
) -> Result<Vec<Result<Vec<Decision>, StoreError>>, StoreError> {
    let request = |(limits, times): &(usize, usize)| {
        let keys: Vec<_> = (0..*limits).map(|number| number.to_string()).collect();
        let requests = keys.into_iter().map(|key| LimitRequest::new(policy, key));
        let request = DecisionRequest::new(requests, Mode::Charge, true);
        #[expect(clippy::expect_used, reason = "the fuzzer reports a panic")]
        let request = request.expect("a request of 1 to 16 limits is valid");
        (request, *times)
    };
    let requests: Vec<_> = inputs.iter().map(request).collect();
    let verdicts = decoding::verdicts(reply, &requests)?;
    assert_eq!(
        verdicts.len(),
        requests.len(),
        "one group of verdicts for each input"
    );
    let decisions =
        |(verdicts, (request, times)): (Vec<Result<_, StoreError>>, &(DecisionRequest<'_>, usize))| {
            // A node that does not serve the slot of the key decides no request.
            assert!(
                verdicts.is_empty() || verdicts.len() == *times,
                "{} verdicts for {times} requests",
                verdicts.len()
            );
            let decision = |verdict: Result<_, StoreError>| Ok(request.decision(verdict?, Origin::Redis));
            verdicts.into_iter().map(decision).collect()
        };
    Ok(verdicts.into_iter().zip(&requests).map(decisions).collect())
}
