//! Concurrency limits: permits are held until they are dropped, and never exceed the maximum.

use std::time::Duration;

use limiter_core::concurrency::ConcurrencyPermit;
use limiter_core::{
    Amount, Enforcement, Key, LimitRequest, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{KEY, Kind, PATIENT, Subject, bucket, millis, secs};

const LEASE: Duration = secs(30);

fn concurrency(max: u32) -> Policy {
    let policy = Policy::concurrency("p").max(max).lease(LEASE);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

async fn enter(subject: &Subject, policy: &Policy, cost: u32) -> Result<ConcurrencyPermit, Rejection> {
    subject.limits.acquire_concurrency(policy, KEY).cost(cost).await
}

async fn remaining(subject: &Subject, policy: &Policy) -> u64 {
    subject.limits.peek(policy, KEY).await.unwrap().remaining()
}

/// Waits until `expected` permits remain: dropped permits are released in the background.
async fn await_remaining(subject: &Subject, policy: &Policy, expected: u64) {
    let comes = async {
        while remaining(subject, policy).await != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, comes)
        .await
        .expect("the permits are released");
}

/// A waiter in its own task; it reports its number, and holds its permit until the channel is
/// closed.
fn waiter(
    subject: &Subject,
    policy: &Policy,
    (number, cost): (u32, u32),
    order: &mpsc::UnboundedSender<(u32, ConcurrencyPermit)>,
) -> JoinHandle<Result<(), Rejection>> {
    let (limits, policy, order) = (subject.limits.clone(), policy.clone(), order.clone());
    tokio::spawn(async move {
        let permit = limits
            .acquire_concurrency(&policy, KEY)
            .cost(cost)
            .timeout(secs(600))
            .await?;
        order.send((number, permit)).unwrap();
        Ok(())
    })
}

/// Lets every ready task run, and waits for pending replies.
async fn settle(subject: &Subject, policy: &Policy) {
    for _ in 0..3 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(subject.limits.peek(policy, "another key").await.is_ok());
    }
}

async fn next_of(served: &mut mpsc::UnboundedReceiver<(u32, ConcurrencyPermit)>) -> (u32, ConcurrencyPermit) {
    let served = tokio::time::timeout(PATIENT, served.recv()).await;
    served.expect("no waiter is served").unwrap()
}

pub(crate) async fn concurrency_never_exceeds_maximum(subject: Subject) {
    let policy = concurrency(3);
    let mut permits = Vec::new();
    for left in [2, 1, 0] {
        let permit = enter(&subject, &policy, 1).await.unwrap();
        assert!(permit.is_valid());
        assert_eq!(permit.decision().remaining(), left);
        assert_eq!(permit.decision().limits()[0].remaining(), Amount::from(left));
        permits.push(permit);
    }
    let denied = enter(&subject, &policy, 1).await.unwrap_err();
    let Rejection::Limited(denied) = denied else {
        unreachable!("{denied:?}")
    };
    assert_eq!((denied.remaining(), denied.retry_after()), (0, None));
    let outcome = denied.limits()[0].clone();
    assert_eq!(outcome.retry_after(), LEASE, "the lease of a dead holder");
    assert_eq!(denied.reset_after(), LEASE);
    assert!(subject.limits.acquire_concurrency(&policy, "other").await.is_ok());
    permits.pop().unwrap().release().await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 1);
    drop(permits);
    await_remaining(&subject, &policy, 3).await;
    if subject.kind != Kind::Memory {
        await_remaining(&subject, &policy, 3).await;
        let left = tokio::time::timeout(PATIENT, async {
            while !subject.redis_keys().iter().all(|key| key.ends_with("replicas")) {
                tokio::task::yield_now().await;
            }
        });
        left.await
            .expect("all keys except the replica registry are removed");
    }
}

pub(crate) async fn cost_is_acquired_as_a_whole(subject: Subject) {
    let policy = concurrency(5);
    let three = enter(&subject, &policy, 3).await.unwrap();
    assert!(enter(&subject, &policy, 3).await.unwrap_err().is_limited());
    let two = enter(&subject, &policy, 2).await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 0);
    let nothing = enter(&subject, &policy, 0).await.unwrap();
    assert!(nothing.is_valid() && nothing.decision().is_allowed());
    three.release().await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 3);
    two.release().await.unwrap();
    nothing.release().await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 5);
}

pub(crate) async fn held_permits_outlive_many_leases(subject: Subject) {
    let policy = concurrency(1);
    let permit = enter(&subject, &policy, 1).await.unwrap();
    for _ in 0..60 {
        subject.clock.advance(LEASE / 6);
        settle(&subject, &policy).await;
        assert!(permit.is_valid());
        assert!(enter(&subject, &policy, 1).await.is_err());
    }
    drop(permit);
    await_remaining(&subject, &policy, 1).await;
}

pub(crate) async fn released_permit_goes_to_first_waiter(subject: Subject) {
    let policy = concurrency(1);
    let first = enter(&subject, &policy, 1).await.unwrap();
    let (order, mut served) = mpsc::unbounded_channel();
    let _waiting: Vec<_> = (0..8)
        .map(|number| waiter(&subject, &policy, (number, 1), &order))
        .collect();
    settle(&subject, &policy).await;
    assert!(served.try_recv().is_err());
    drop(first);
    for expected in 0..8 {
        let (number, permit) = next_of(&mut served).await;
        assert_eq!(number, expected);
        assert!(permit.is_valid());
        assert_eq!(remaining(&subject, &policy).await, 0);
        settle(&subject, &policy).await;
        assert!(served.try_recv().is_err(), "one at a time");
        drop(permit);
    }
    await_remaining(&subject, &policy, 1).await;
}

/// Transferred for up to a second in a row, counted from the first transfer.
pub(crate) async fn long_held_permit_is_transferred(subject: Subject) {
    let policy = concurrency(1);
    let first = enter(&subject, &policy, 1).await.unwrap();
    let (order, mut served) = mpsc::unbounded_channel();
    let _waiting: Vec<_> = (0..3)
        .map(|number| waiter(&subject, &policy, (number, 1), &order))
        .collect();
    settle(&subject, &policy).await;
    subject.clock.advance(secs(5));
    settle(&subject, &policy).await;
    let here = subject.kind == Kind::Memory;
    let handed_on = if here { Origin::Memory } else { Origin::Lease };
    drop(first);
    let (_, second) = next_of(&mut served).await;
    assert_eq!(second.decision().origin(), handed_on);
    subject.clock.advance(millis(999));
    settle(&subject, &policy).await;
    drop(second);
    let (_, third) = next_of(&mut served).await;
    assert_eq!(third.decision().origin(), handed_on);
    subject.clock.advance(millis(1));
    settle(&subject, &policy).await;
    drop(third);
    settle(&subject, &policy).await;
    // Other processes have had a turn.
    subject.clock.advance(millis(500));
    let (_, fourth) = next_of(&mut served).await;
    assert_eq!(
        fourth.decision().origin(),
        if here { Origin::Memory } else { Origin::Redis }
    );
    drop(fourth);
    await_remaining(&subject, &policy, 1).await;
}

pub(crate) async fn cheap_waiter_does_not_overtake_expensive_one(subject: Subject) {
    let policy = concurrency(3);
    let [one, another, third] = [(); 3].map(|()| subject.limits.acquire_concurrency(&policy, KEY));
    let (one, another, third) = (one.await.unwrap(), another.await.unwrap(), third.await.unwrap());
    let (order, mut served) = mpsc::unbounded_channel();
    let _large = waiter(&subject, &policy, (0, 2), &order);
    settle(&subject, &policy).await;
    let _small = waiter(&subject, &policy, (1, 1), &order);
    settle(&subject, &policy).await;
    one.release().await.unwrap();
    settle(&subject, &policy).await;
    assert!(served.try_recv().is_err());
    another.release().await.unwrap();
    let (number, large) = next_of(&mut served).await;
    assert_eq!(number, 0);
    settle(&subject, &policy).await;
    assert!(served.try_recv().is_err());
    third.release().await.unwrap();
    // The first waiter queries Redis again after a pause.
    subject.clock.advance(millis(500));
    let (number, small) = next_of(&mut served).await;
    assert_eq!(number, 1);
    drop((large, small));
    await_remaining(&subject, &policy, 3).await;
}

pub(crate) async fn wait_ends_at_its_timeout(subject: Subject) {
    let policy = concurrency(1);
    let held = enter(&subject, &policy, 1).await.unwrap();
    let (limits, other) = (subject.limits.clone(), policy.clone());
    let waiting = tokio::spawn(async move { limits.acquire_concurrency(&other, KEY).timeout(secs(2)).await });
    for _ in 0..40 {
        settle(&subject, &policy).await;
        assert!(!waiting.is_finished());
        subject.clock.advance(millis(50));
    }
    let answer = tokio::time::timeout(PATIENT, waiting).await.unwrap().unwrap();
    let Err(Rejection::TimedOut { decision, limit }) = answer else {
        unreachable!("{answer:?}")
    };
    assert_eq!((decision.unwrap().remaining(), limit), (0, secs(2)));
    drop(held);
    await_remaining(&subject, &policy, 1).await;
}

pub(crate) async fn waiter_leaving_queue_holds_no_permit(subject: Subject) {
    let policy = concurrency(1);
    let held = enter(&subject, &policy, 1).await.unwrap();
    let (order, mut served) = mpsc::unbounded_channel();
    let waiting: Vec<_> = (0..4)
        .map(|number| waiter(&subject, &policy, (number, 1), &order))
        .collect();
    settle(&subject, &policy).await;
    waiting[0].abort();
    waiting[2].abort();
    settle(&subject, &policy).await;
    drop(held);
    // With or without a transfer, the remaining waiters get the permit; the first one queries again
    // after a pause.
    for expected in [1, 3] {
        let (number, permit) = next_of(&mut served).await;
        assert_eq!(number, expected);
        drop(permit);
    }
    await_remaining(&subject, &policy, 1).await;
}

pub(crate) async fn shutdown_ends_waits_and_keeps_held_permits(subject: Subject) {
    let policy = concurrency(1);
    let held = enter(&subject, &policy, 1).await.unwrap();
    let (limits, other) = (subject.limits.clone(), policy.clone());
    let waiting =
        tokio::spawn(async move { limits.acquire_concurrency(&other, KEY).timeout(secs(60)).await });
    settle(&subject, &policy).await;
    subject.limits.shutdown(PATIENT).await;
    let answer = tokio::time::timeout(PATIENT, waiting).await.unwrap().unwrap();
    for answer in [answer, enter(&subject, &policy, 1).await] {
        let Err(Rejection::Unavailable { error, .. }) = answer else {
            unreachable!("{answer:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::ShutDown);
    }
    let listed = Policy::concurrency("listed").max(1).allow_keys(["bob"]);
    let listed = listed.build().unwrap();
    let closed = subject.limits.acquire_concurrency(&listed, "bob").await;
    assert!(matches!(closed, Err(Rejection::Unavailable { .. })), "{closed:?}");
    subject.clock.advance(LEASE / 2);
    assert!(held.is_valid());
    held.release().await.unwrap();
}

pub(crate) async fn only_concurrency_policy_can_be_acquired(subject: Subject) {
    let (policy, rate) = (concurrency(1), bucket("rate", 5, 1));
    let limits = &subject.limits;
    let refused = [
        limits.check(&policy, KEY).await.unwrap_err(),
        limits.acquire(&policy, KEY).await.unwrap_err(),
        limits.refund(&policy, KEY).await.unwrap_err(),
        limits
            .check_all([LimitRequest::new(&rate, KEY), LimitRequest::new(&policy, KEY)])
            .await
            .unwrap_err(),
    ];
    for refused in refused {
        assert!(matches!(refused, Rejection::Config(_)), "{refused:?}");
        let text = refused.diagnostic().to_string();
        assert!(text.contains("Limiter::acquire_concurrency"), "{text}");
    }
    let refused = enter(&subject, &rate, 1).await.unwrap_err();
    let text = refused.diagnostic().to_string();
    assert!(text.contains("Limiter::check"), "{text}");
    assert!(matches!(
        enter(&subject, &policy, 2).await,
        Err(Rejection::NeverFits { .. })
    ));
    for cost in [0.5, -1.0] {
        let refused = subject.limits.acquire_concurrency(&policy, KEY).cost(cost).await;
        assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
    }
    let large = Policy::concurrency("large").max(5_000).build().unwrap();
    assert!(matches!(
        limits.acquire_concurrency(&large, KEY).cost(1_025).await,
        Err(Rejection::Config(_))
    ));
    let most = limits.acquire_concurrency(&large, KEY).cost(1_024).await.unwrap();
    assert_eq!(most.decision().remaining(), 3_976);
    most.release().await.unwrap();
}

pub(crate) async fn keys_in_groups_have_separate_concurrency(subject: Subject) {
    let policy = concurrency(1);
    let _one = subject
        .limits
        .acquire_concurrency(&policy, Key::from(KEY).in_group("a"))
        .await
        .unwrap();
    let _other = subject
        .limits
        .acquire_concurrency(&policy, Key::from(KEY).in_group("b"))
        .await
        .unwrap();
    assert!(enter(&subject, &policy, 1).await.is_ok());
}

pub(crate) async fn changed_maximum_applies_to_next_call(subject: Subject) {
    let (small, large) = (concurrency(1), concurrency(3));
    let one = enter(&subject, &small, 1).await.unwrap();
    let two = enter(&subject, &large, 2).await.unwrap();
    assert!(enter(&subject, &large, 1).await.unwrap_err().is_limited());
    one.release().await.unwrap();
    assert!(enter(&subject, &small, 1).await.unwrap_err().is_limited());
    assert_eq!(
        enter(&subject, &large, 1).await.unwrap().decision().remaining(),
        0
    );
    drop(two);
    await_remaining(&subject, &small, 1).await;
}

/// A waiter under an old maximum does not block waiters under a new one, and is rejected if the new
/// maximum never admits its cost.
pub(crate) async fn changed_maximum_applies_to_waiters(subject: Subject) {
    let (order, mut served) = mpsc::unbounded_channel();
    let [small, large] = [concurrency(1), concurrency(4)];
    let held = enter(&subject, &small, 1).await.unwrap();
    let first = waiter(&subject, &small, (1, 1), &order);
    settle(&subject, &small).await;
    assert!(
        served.try_recv().is_err(),
        "the old maximum admits no second permit"
    );
    let second = waiter(&subject, &large, (2, 2), &order);
    let (one, two) = (next_of(&mut served).await, next_of(&mut served).await);
    assert_eq!((one.0, two.0), (1, 2), "in order of arrival");
    let third = waiter(&subject, &large, (3, 3), &order);
    settle(&subject, &large).await;
    let fourth = waiter(&subject, &concurrency(2), (4, 1), &order);
    assert!(matches!(third.await.unwrap(), Err(Rejection::NeverFits { .. })));
    drop((held, one, two));
    let last = next_of(&mut served).await;
    assert_eq!(last.0, 4);
    for waiter in [first, second, fourth] {
        waiter.await.unwrap().unwrap();
    }
}

pub(crate) async fn reset_keeps_permits_of_this_process(subject: Subject) {
    let policy = concurrency(2);
    let held = enter(&subject, &policy, 1).await.unwrap();
    subject.limits.reset(&policy, KEY).await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 1);
    assert!(held.is_valid());
    drop(held);
    await_remaining(&subject, &policy, 2).await;
}

/// Every store equals a count: each admission and each number of the decisions.
pub(crate) async fn random_traces_equal_a_counter(subject: Subject) {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let policies = [concurrency(3), concurrency(6)];
    let mut held: Vec<ConcurrencyPermit> = Vec::new();
    let mut costs: Vec<u64> = Vec::new();
    for step in 0..300 {
        let result = format!("step {step} of seed {seed}");
        subject.clock.advance(millis(random.u64(0..1_500)));
        let policy = &policies[random.usize(..2)];
        let (max, before) = (policy.quota().whole(), costs.iter().sum::<u64>());
        let (cost, action) = (random.u32(0..=3), random.u32(0..10));
        if action < 4 && !held.is_empty() {
            let place = random.usize(..held.len());
            costs.swap_remove(place);
            held.swap_remove(place).release().await.unwrap();
            continue;
        }
        let fits = cost == 0 || before + u64::from(cost) <= max;
        let (decision, after) = if action < 6 {
            let peeked = subject.limits.peek(policy, KEY).cost(cost).await.unwrap();
            (peeked, before)
        } else {
            match enter(&subject, policy, cost).await {
                Ok(permit) => {
                    let decision = permit.decision().clone();
                    held.push(permit);
                    costs.push(cost.into());
                    (decision, before + u64::from(cost))
                }
                Err(Rejection::Limited(denied)) => (*denied, before),
                Err(other) => unreachable!("{result}: {other:?}"),
            }
        };
        let reset_after = if after == 0 { Duration::ZERO } else { LEASE };
        assert_eq!(
            (
                decision.is_allowed(),
                decision.remaining(),
                decision.retry_after(),
                decision.reset_after()
            ),
            (fits, max.saturating_sub(after), None, reset_after),
            "{result}: {cost} of {max} where {before} are held"
        );
        assert_eq!(decision.decided_at(), subject.clock.now(), "{result}");
    }
    assert!(held.iter().all(ConcurrencyPermit::is_valid));
}

/// Sixty-four tasks acquire and release, and some of them are cancelled.
pub(crate) async fn ten_thousand_cycles_keep_maximum_and_leak_nothing(subject: Subject) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    const CYCLES: u64 = 10_000;
    let policy = concurrency(7);
    let (inside, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64_u64 {
        let (limits, policy) = (subject.limits.clone(), policy.clone());
        let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            while done.fetch_add(1, Ordering::SeqCst) < CYCLES {
                let entering = limits
                    .acquire_concurrency(&policy, KEY)
                    .timeout(PATIENT * 10)
                    .into_future();
                let mut entering = std::pin::pin!(entering);
                if random.u32(0..8) == 0 {
                    // Cancelled after some polls, at any stage.
                    let polls = random.u32(0..4);
                    let some = async {
                        for _ in 0..polls {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! {
                        biased;
                        permit = entering.as_mut() => drop(permit.unwrap()),
                        () = some => {}
                    }
                    continue;
                }
                let permit = entering.await.unwrap();
                assert!(
                    inside.fetch_add(1, Ordering::SeqCst) < 7,
                    "concurrency exceeds the maximum"
                );
                for _ in 0..random.u32(0..3) {
                    tokio::task::yield_now().await;
                }
                assert!(permit.is_valid());
                inside.fetch_sub(1, Ordering::SeqCst);
                if random.bool() {
                    permit.release().await.unwrap();
                }
            }
        });
    }
    // The first waiter queries again after pauses of this clock.
    let clock = subject.clock.clone();
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(millis(1)).await;
            clock.advance(millis(1));
        }
    });
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    await_remaining(&subject, &policy, 7).await;
    ticking.abort();
}

/// Exempt calls hold no permit; calls in shadow mode are counted while permits remain, and never
/// denied.
pub(crate) async fn modes_and_key_lists_apply_to_concurrency(subject: Subject) {
    let policy = |name: &str| {
        let policy = Policy::concurrency(name).max(1).deadline(PATIENT);
        policy.on_store_failure(OnStoreFailure::Error)
    };
    let limits = &subject.limits;
    let off = policy("off").enforcement(Enforcement::Off).build().unwrap();
    let one = limits.acquire_concurrency(&off, KEY).await.unwrap();
    let two = limits.acquire_concurrency(&off, KEY).await.unwrap();
    assert_eq!(
        (one.decision().origin(), two.decision().origin()),
        (Origin::Off, Origin::Off)
    );

    let shadow = policy("shadow").enforcement(Enforcement::Shadow).build().unwrap();
    let held = limits.acquire_concurrency(&shadow, KEY).await.unwrap();
    assert!(!held.decision().would_deny());
    let above_max = limits
        .acquire_concurrency(&shadow, KEY)
        .timeout(secs(60))
        .await
        .unwrap();
    assert!(above_max.decision().is_allowed() && above_max.decision().would_deny());
    drop(above_max);
    let peeked = limits.peek(&shadow, KEY).await.unwrap();
    assert!(peeked.is_allowed() && peeked.would_deny(), "{peeked:?}");
    assert_eq!(
        peeked.outcome_at(0).map(|limit| limit.remaining().whole()),
        Some(0),
        "the first is still held"
    );
    let free = limits.peek(&shadow, "free").await.unwrap();
    assert!(!free.would_deny() && free.remaining() == 1, "{free:?}");
    assert_eq!(limits.peek(&off, KEY).await.unwrap().origin(), Origin::Off);
    let invalid = limits
        .acquire_concurrency(&shadow, "never fits")
        .cost(2)
        .await
        .unwrap();
    assert!(invalid.decision().is_allowed() && invalid.decision().would_deny());
    assert_ne!(invalid.decision().origin(), Origin::FailedOpen, "the store works");

    let listed = policy("listed")
        .allow_keys(["ann"])
        .deny_keys(["bob"])
        .build()
        .unwrap();
    let ann = [
        limits.acquire_concurrency(&listed, "ann").await.unwrap(),
        limits.acquire_concurrency(&listed, "ann").await.unwrap(),
    ];
    assert!(
        ann.iter()
            .all(|permit| permit.decision().origin() == Origin::KeyList)
    );
    let bob = limits.acquire_concurrency(&listed, "bob").await;
    assert!(matches!(bob, Err(Rejection::Forbidden { policy, .. }) if policy == "listed"));
    for (key, is_allowed) in [("ann", true), ("bob", false)] {
        let peeked = limits.peek(&listed, key).await.unwrap();
        assert_eq!(
            (peeked.origin(), peeked.is_allowed()),
            (Origin::KeyList, is_allowed)
        );
    }
    let eve = limits.acquire_concurrency(&listed, "eve").await.unwrap();
    let peeked = limits.peek(&listed, "eve").await.unwrap();
    assert!(!peeked.is_allowed() && peeked.remaining() == 0, "{peeked:?}");
    drop(eve);
    let penalised = policy("p").penalty("1 in 1s: 1s").build();
    assert!(penalised.is_err(), "concurrency policies have no penalties");
}
