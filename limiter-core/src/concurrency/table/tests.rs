use crate::concurrency::table::*;
use crate::identity::Prefix;

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
    let counted = holders.count(key("k"), cost, 3).unwrap();
    counted.ok().map(|_| holders.held(key("k"), terms(cost), ()))
}

#[test]
fn what_is_given_back_goes_to_who_is_first() {
    let holders = PermitTable::new(10, 10);
    let (one, two) = (take(&holders, 1), take(&holders, 2));
    assert!(one.is_some() && two.is_some() && take(&holders, 1).is_none());
    let [large, small] = [2, 1].map(|cost| holders.join(key("k"), terms(cost)).unwrap());
    assert!(large.query_requested() && !small.query_requested());
    drop(one);
    assert!(
        large.passed().is_none() && small.passed().is_none(),
        "one is not enough for two, and nobody overtakes"
    );
    drop(two);
    let passed = [&large, &small].map(|waiter| waiter.passed().unwrap());
    assert_eq!(holders.number(key("k")), 3);
    drop((large, small));
    assert!(take(&holders, 1).is_none(), "they are held");
    drop(passed);
    assert_eq!((holders.number(key("k")), holders.keys()), (0, 0));
}

#[test]
fn what_was_handed_to_somebody_who_leaves_goes_on() {
    let holders = PermitTable::new(10, 10);
    let held = take(&holders, 3);
    let [first, second, third] = [1, 3, 1].map(|cost| holders.join(key("k"), terms(cost)).unwrap());
    drop(held);
    assert_eq!(
        holders.number(key("k")),
        1,
        "the second has no room beside the first"
    );
    drop(second);
    assert!(third.query_requested(), "now he is first");
    drop(first);
    let passed = third.passed();
    drop(third);
    assert_eq!(holders.number(key("k")), 1);
    drop(passed);
    assert_eq!((holders.number(key("k")), holders.keys()), (0, 0));
}

#[test]
fn keys_and_waiters_are_bounded_and_leave_when_nothing_is_held() {
    let holders = PermitTable::<()>::new(2, 1);
    let held = ["a", "b"].map(|name| {
        holders.count(key(name), 1, 3).unwrap().unwrap();
        holders.held(key(name), terms(1), ())
    });
    let error = holders.count(key("c"), 1, 3).unwrap_err();
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
