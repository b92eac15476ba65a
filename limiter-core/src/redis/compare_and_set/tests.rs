//! A value that a compare-and-set stores is read back as the same state, including leased tokens,
//! and changes no other value.

use std::time::Duration;

use crate::algorithm::{Mode, ScaleChange, grant_lease, leased_at, scale, step};
use crate::policy::Policy;
use crate::redis::compare_and_set::*;
use crate::redis::token_lease::leased_limit::tests::store;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::ManualClock;

fn request(policy: &Policy, cost: u32) -> DecisionRequest<'_> {
    DecisionRequest::new([LimitRequest::new(policy, "k").cost(cost)], Mode::Charge, true).unwrap()
}

fn level(kind: u8, capacity: u32) -> Policy {
    let builder = if kind == 0 {
        Policy::token_bucket("p")
    } else {
        Policy::funnel("p")
    };
    let builder = builder.capacity(capacity).rate("1/s").lease("10s");
    builder.deadline(Duration::from_secs(30)).build().unwrap()
}

#[tokio::test]
async fn conversion_keeps_leased_tokens() {
    // Conversion scales the remaining tokens of a bucket and the usage of a funnel. In neither case
    // does more remain than the quota minus the leased tokens.
    for kind in 0..2 {
        for (old, new, left, after) in [(10, 100, 4_000, [40_000, 76_000]), (100, 10, 40_000, [0, 0])] {
            let clock = ManualClock::new();
            let store = store(&clock);
            let (before, policy) = (level(kind, old), level(kind, new));
            let (before_request, request) = (request(&before, old * 2 / 10), request(&policy, 1));
            let [limit] = &*before_request.limits else {
                unreachable!()
            };
            let lease_request = LeaseRequest {
                cost: limit.cost,
                want: 1_000_000,
                epoch: 5_000_000,
                report: UsageReport::default(),
            };
            let lending = store
                .lender()
                .grant_lease(&store.lender().leased_limit(limit), &lease_request)
                .await
                .unwrap();
            let mut model = StepState::Absent;
            let (outcome, loan) = grant_lease(
                before.algorithm(),
                &mut model,
                &lease_request,
                clock.now().as_micros(),
            );
            assert_eq!((loan, outcome.remaining), (lending.loan, left));
            assert!(loan.amount > 0);

            clock.advance(Duration::from_micros(1));
            let now = clock.now().as_micros();
            let scaling = ScaleChange {
                before: before.algorithm(),
                after: policy.algorithm(),
                at: now,
            };
            assert!(scale(&scaling, &mut model, now));
            assert_eq!(leased_at(policy.algorithm(), &model, now), loan.amount);

            let [limit] = &*request.limits else { unreachable!() };
            let limit = &store.states().target(limit);
            let found = store.states().read_state(limit).await.unwrap();
            let mut state = found.state.clone();
            assert!(scale(&scaling, &mut state, now));
            assert!(store.states().replace(limit, &found, &state).await.unwrap());
            assert!(
                !store.states().replace(limit, &found, &state).await.unwrap(),
                "the value has changed"
            );
            let kept = store.states().read_state(limit).await.unwrap();
            assert_eq!(format!("{:?}", kept.state), format!("{model:?}"));
            assert_eq!(
                step(policy.algorithm(), &mut model.clone(), 0, now, Mode::Peek).remaining,
                after[usize::from(kind)]
            );
            let ours = step(policy.algorithm(), &mut model, 1_000, now, Mode::Charge);
            let theirs = store.decide(&request).await.unwrap();
            assert_eq!(theirs.outcomes[0], ours);
        }
    }
}

#[tokio::test]
async fn value_of_another_algorithm_is_an_unknown_layout() {
    let clock = ManualClock::new();
    let store = store(&clock);
    let (bucket, window) = (
        level(0, 5),
        Policy::fixed_window("p").limit(5).window("1s").build().unwrap(),
    );
    let (bucket, window) = (request(&bucket, 1), request(&window, 1));
    let ([bucket_limit], [window_limit]) = (&*bucket.limits, &*window.limits) else {
        unreachable!()
    };
    let [bucket_limit, window_limit] =
        &[bucket_limit, window_limit].map(|limit| store.states().target(limit));
    store.decide(&bucket).await.unwrap();
    let found = store.states().read_state(bucket_limit).await.unwrap();
    assert!(matches!(found.state, StepState::TokenBucket(_)));
    // The name of the window has no state.
    let absent = store.states().read_state(window_limit).await.unwrap();
    assert!(matches!(absent.state, StepState::Absent));
    let swapped = store
        .states()
        .replace(window_limit, &absent, &found.state)
        .await
        .unwrap();
    assert!(swapped);
    let rejected = store.states().read_state(window_limit).await.unwrap_err();
    assert_eq!(rejected.kind(), crate::error::StoreErrorKind::UnknownLayout);
}
