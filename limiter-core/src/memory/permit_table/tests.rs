use crate::identity::Prefix;
use crate::memory::permit_table::*;

fn key(name: &str) -> Identity {
    Prefix::new("cc", "p").identity(None, name)
}

fn terms(cost: u64) -> PermitTerms {
    PermitTerms {
        cost,
        max: 3,
        lease_ms: 1_000,
    }
}

fn take(holders: &Arc<PermitTable<()>>, cost: u64) -> Option<PermitGuard<()>> {
    let counted = holders.try_count(key("k"), cost, 3).unwrap();
    matches!(counted, PermitCount::Counted(_)).then(|| holders.guard(key("k"), terms(cost), ()))
}

#[test]
fn released_permits_pass_to_first_waiter() {
    let holders = PermitTable::new(10, 10);
    let (one, two) = (take(&holders, 1), take(&holders, 2));
    assert!(one.is_some() && two.is_some() && take(&holders, 1).is_none());
    let [large, small] = [2, 1].map(|cost| holders.join(key("k"), terms(cost)).unwrap());
    assert!(large.query_requested() && !small.query_requested());
    drop(one);
    assert!(
        large.take_permits().is_none() && small.take_permits().is_none(),
        "one permit is not enough for the first waiter, and the second does not overtake"
    );
    drop(two);
    let take_permits = [&large, &small].map(|waiter| waiter.take_permits().unwrap());
    assert_eq!(holders.count_held(key("k")), 3);
    drop((large, small));
    assert!(take(&holders, 1).is_none(), "they are held");
    drop(take_permits);
    assert_eq!((holders.count_held(key("k")), holders.keys()), (0, 0));
}

#[test]
fn permits_of_cancelled_waiter_pass_to_next_waiter() {
    let holders = PermitTable::new(10, 10);
    let held = take(&holders, 3);
    let [first, second, third] = [1, 3, 1].map(|cost| holders.join(key("k"), terms(cost)).unwrap());
    drop(held);
    assert_eq!(
        holders.count_held(key("k")),
        1,
        "the second waiter does not fit beside the first"
    );
    drop(second);
    assert!(third.query_requested(), "the third waiter is now first");
    drop(first);
    let take_permits = third.take_permits();
    drop(third);
    assert_eq!(holders.count_held(key("k")), 1);
    drop(take_permits);
    assert_eq!((holders.count_held(key("k")), holders.keys()), (0, 0));
}

#[test]
fn keys_and_waiters_are_bounded_and_removed_when_idle() {
    let holders = PermitTable::<()>::new(2, 1);
    let held = ["a", "b"].map(|name| {
        let counted = holders.try_count(key(name), 1, 3).unwrap();
        assert!(matches!(counted, PermitCount::Counted(1)));
        holders.guard(key(name), terms(1), ())
    });
    let error = holders.try_count(key("c"), 1, 3).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert_eq!(
        holders.join(key("c"), terms(1)).unwrap_err().kind(),
        StoreErrorKind::Full
    );
    let waiter = holders.join(key("a"), terms(3)).unwrap();
    let error = holders.join(key("a"), terms(3)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Overloaded);
    drop((held, waiter));
    assert_eq!(holders.keys(), 0);
    assert!(holders.join(key("c"), terms(1)).is_ok());
}
