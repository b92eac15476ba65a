use std::time::Duration;

use smallvec::smallvec;

use super::*;
use crate::algorithm::Mode;
use crate::identity::Prefix;
use crate::policy::Policy;
use crate::request::{Ask, Request};

pub(super) fn wanted(policy: &Policy, cost: u32) -> Wanted {
    let ask = Ask::new(policy, "k").cost(cost);
    Wanted::of(&Request::new([ask], Mode::Charge, false).unwrap())
}

/// Until when a question is waited for that is not lost.
pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

pub(super) fn policy() -> Policy {
    Policy::token_bucket("p").capacity(5).rate(1).build().unwrap()
}

#[test]
fn queues_that_everybody_left_are_gone() {
    let queues = Queues::new(4);
    let policy = policy();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let prefix = Prefix::new("tb", "p");
                let names: Vec<_> = (0..7)
                    .map(|key| prefix.identity(None, &key.to_string()))
                    .collect();
                for name in 0..5_000 {
                    let mut place = queues
                        .join(smallvec![names[name % 7]], wanted(&policy, 1))
                        .unwrap();
                    assert!(place.leave(&queues).is_none());
                }
            });
        }
    });
    assert!(queues.lock().lines.is_empty());
    assert_eq!(queues.lock().count, 0);
}

#[test]
fn a_run_ends_at_whoever_wants_something_else() {
    let queues = Arc::new(Queues::new(100));
    let policy = policy();
    let name: Name = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let join = |cost| queues.join(name.clone(), wanted(&policy, cost)).unwrap();
    let mut places: Vec<Place> = [1, 1, 1, 2, 1].map(join).into();
    let asking = places[0].ask(&queues, soon());
    assert_eq!(asking.times, 3);
    let now = Timestamp::from_micros(0);
    assert!(matches!(places[0].look(&queues, now), Turn::Asked(_)));
    assert!(matches!(places[1].look(&queues, now), Turn::Behind));
    drop(asking);
    assert!(matches!(places[0].look(&queues, now), Turn::Own));
    for _ in 0..3 {
        assert!(places.remove(0).leave(&queues).is_none());
    }
    assert_eq!(places[0].ask(&queues, soon()).times, 1, "and begins anew behind it");
    places
        .iter_mut()
        .for_each(|place| assert!(place.leave(&queues).is_none()));
    let mut many: Vec<Place> = (0..90).map(|_| join(1)).collect();
    assert_eq!(many[0].ask(&queues, soon()).times, LONGEST_RUN);
    many.iter_mut()
        .for_each(|place| assert!(place.leave(&queues).is_none()));
    assert!(queues.lock().lines.is_empty());
}
