//! Test decisions at startup, which detect missing permissions and read-only servers before the
//! first call.
//!
//! A server reports a missing permission only when a script runs the command. The test decisions
//! therefore run all commands of the decision script and of the refunds, on keys of their own,
//! which they remove at the end. In a cluster they run on each primary: the permissions of a user
//! are settings of a node. Replicas that start together use the same keys.
//!
//! Tests: `tests/permissions.rs`.

use crate::algorithm::{Mode, UsageCorrection};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::policy::Policy;
use crate::redis::script::wire::{Operation, ScriptInput};
use crate::redis::script::{reply, wire};
use crate::redis::token_lease::leased_limit;
use crate::redis::{READY_WITHIN, RedisStore};
use crate::request::{DecisionRequest, LimitRequest};

/// So large that no ring of these permits is read completely.
const PERMITS: u64 = 200;

/// Executes every command of decisions and refunds on keys with this hash tag, and removes the
/// keys. Other replicas may use the same keys concurrently.
pub(crate) async fn check_permissions(store: &RedisStore, tag: &str) -> Result<(), StoreError> {
    let trial = Trial {
        store,
        keys: store.namespace.preflight_keys(tag),
    };
    let level = built(Policy::token_bucket("ready").capacity(1).rate(1).build())?;
    let window = |window| {
        let policy = Policy::sliding_window("ready").limit(PERMITS).window(window);
        built(policy.build())
    };
    let (short, long) = (window("1s")?, window("1m")?);
    trial.decide([&level, &short], Operation::Check).await?;
    // The denial extends the life of the ring, which rewrites a part of it.
    trial.decide([&level, &long], Operation::Check).await?;
    trial.refund([&level, &long]).await?;
    trial.decide([&level, &long], Operation::Reset).await?;
    trial.decide_apart(&level, Operation::Check).await?;
    trial.decide_apart(&level, Operation::Reset).await
}

struct Trial<'a> {
    store: &'a RedisStore,
    keys: [String; 3],
}

impl Trial<'_> {
    /// Decides all permits of two limits at once.
    async fn decide(&self, policies: [&Policy; 2], operation: Operation) -> Result<(), StoreError> {
        let request = request_of(policies)?;
        let mut input = ScriptInput::new(&request, operation, &self.store.namespace);
        let [level, window, _] = self.keys.clone();
        input.keys = [level, window].into_iter().collect();
        self.run(&[input]).await
    }

    /// Decides two single limits in one call. Other replicas use the same keys, so no key is used
    /// for both a level and a window.
    async fn decide_apart(&self, policy: &Policy, operation: Operation) -> Result<(), StoreError> {
        let [level, _, other] = &self.keys;
        let mut inputs = Vec::new();
        for key in [level, other] {
            let request = request([LimitRequest::new(policy, key.as_str())])?;
            let mut input = ScriptInput::new(&request, operation, &self.store.namespace);
            input.keys = std::iter::once(key.clone()).collect();
            inputs.push(input);
        }
        self.run(&inputs).await
    }

    /// Runs the inputs in one call. Each of them must be decided.
    async fn run(&self, inputs: &[ScriptInput]) -> Result<(), StoreError> {
        let items: Vec<_> = inputs.iter().map(|input| (input, 1)).collect();
        let call = wire::call(&items, self.store.clock.injected(), READY_WITHIN);
        let reply = self.store.route.run(&call).await?;
        for verdicts in reply::verdicts(&reply, &items)? {
            verdicts.into_iter().try_for_each(|verdict| verdict.map(drop))?;
        }
        Ok(())
    }

    async fn refund(&self, policies: [&Policy; 2]) -> Result<(), StoreError> {
        for (limit, key) in request_of(policies)?.limits.iter().zip(self.keys.clone()) {
            let refund = UsageCorrection::Refund { whole_at: 0 };
            let now = self.store.clock.injected();
            let call = leased_limit::apply_change(limit, refund, key, now, READY_WITHIN);
            self.store.route.run(&call).await?;
        }
        Ok(())
    }
}

fn request_of(policies: [&Policy; 2]) -> Result<DecisionRequest<'_>, StoreError> {
    request(policies.map(|policy| LimitRequest::new(policy, Key::global()).cost(policy.quota())))
}

fn request<'a>(
    limits: impl IntoIterator<Item = LimitRequest<'a>>,
) -> Result<DecisionRequest<'a>, StoreError> {
    let request = DecisionRequest::new(limits, Mode::Charge, true);
    request.map_err(|rejection| invalid(&rejection.diagnostic().to_string()))
}

fn built(policy: Result<Policy, ConfigError>) -> Result<Policy, StoreError> {
    policy.map_err(|error| invalid(&error.to_string()))
}

fn invalid(detail: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, detail.to_owned())
}
