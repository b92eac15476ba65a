use smallvec::smallvec;

use super::*;
use crate::algorithm::Mode;
use crate::identity::Prefix;
use crate::policy::Policy;
use crate::request::{Ask, Request};

fn wanted(policy: &Policy, cost: u32) -> Wanted {
    let ask = Ask::new(policy, "k").cost(cost);
    Wanted::of(&Request::new([ask], Mode::Charge, false).unwrap())
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
