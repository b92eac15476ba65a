use std::time::Duration;

use smallvec::smallvec;

use crate::algorithm::{Mode, StepOutcome};
use crate::decision::Origin;
use crate::identity::Prefix;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest, Verdict};
use crate::waiting::queue::ticket::LONGEST_RUN;
use crate::waiting::queue::*;

pub(crate) fn wanted(policy: &Policy, cost: u32) -> OwnedRequest {
    let ask = LimitRequest::new(policy, "k").cost(cost);
    OwnedRequest::from_request(&DecisionRequest::new([ask], Mode::Charge, false).unwrap())
}

/// Until when a question is waited for that is not lost.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

pub(crate) fn policy() -> Policy {
    Policy::token_bucket("p").capacity(5).rate(1).build().unwrap()
}

fn is_empty(queues: &WaitQueues) -> bool {
    let waiting = queues.lock();
    waiting.lines.is_empty() && waiting.together.is_empty()
}

#[test]
fn queues_that_everybody_left_are_gone() {
    let queues = WaitQueues::new(4);
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
                    assert!(place.remove(&queues).is_none());
                }
            });
        }
    });
    assert!(is_empty(&queues));
    assert_eq!(queues.lock().count, 0);
}

#[test]
fn a_run_ends_at_whoever_wants_something_else() {
    let queues = Arc::new(WaitQueues::new(100));
    let policy = policy();
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let join = |cost| queues.join(name.clone(), wanted(&policy, cost)).unwrap();
    let mut places: Vec<Ticket> = [1, 1, 1, 2, 1].map(join).into();
    let asking = places[0].begin_query(&queues, soon());
    assert_eq!(asking.times, 3);
    let now = Timestamp::from_micros(0);
    assert!(matches!(
        places[0].poll_state(&queues, now),
        TicketState::Asked(_)
    ));
    assert!(matches!(places[1].poll_state(&queues, now), TicketState::Behind));
    drop(asking);
    assert!(matches!(places[0].poll_state(&queues, now), TicketState::Own(_)));
    for _ in 0..3 {
        assert!(places.remove(0).remove(&queues).is_none());
    }
    assert_eq!(
        places[0].begin_query(&queues, soon()).times,
        1,
        "and begins anew behind it"
    );
    places
        .iter_mut()
        .for_each(|place| assert!(place.remove(&queues).is_none()));
    let mut many: Vec<Ticket> = (0..90).map(|_| join(1)).collect();
    assert_eq!(many[0].begin_query(&queues, soon()).times, LONGEST_RUN);
    many.iter_mut()
        .for_each(|place| assert!(place.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}

fn other_policy() -> Policy {
    Policy::token_bucket("p").capacity(3).rate(2).build().unwrap()
}

/// As many calls of two places in a program that do not agree on a policy.
#[test]
fn a_line_whose_policies_differ_is_looked_through_no_further_than_is_asked_for() {
    let queues = Arc::new(WaitQueues::new(1_000));
    let policies = [policy(), other_policy()];
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let join = |number: usize| {
        let wanted = wanted(&policies[number % 2], 1);
        queues.join(name.clone(), wanted).unwrap()
    };
    let mut places: Vec<Ticket> = (0..1_000).map(join).collect();
    let by_the_last = || {
        let waiting = queues.lock();
        let waiters = waiting.lines[&name].waiters.values();
        let last = wanted(&policies[1], 1);
        waiters.map(|waiter| *waiter.wanted == last).collect::<Vec<_>>()
    };
    let are_by_the_last = by_the_last();
    assert!(
        are_by_the_last[0],
        "who is first, asks by the policies of the last"
    );
    assert_eq!(
        are_by_the_last.iter().filter(|by| **by).count(),
        501,
        "nobody else has to"
    );
    let asking = places[0].begin_query(&queues, soon());
    assert_eq!(asking.times, LONGEST_RUN);
    assert_eq!(
        by_the_last().iter().filter(|by| **by).count(),
        501 + LONGEST_RUN / 2 - 1
    );
    drop(asking);
    places
        .iter_mut()
        .for_each(|place| assert!(place.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}

#[test]
fn who_can_never_be_served_by_the_last_policies_is_told_so_when_it_is_first() {
    let queues = Arc::new(WaitQueues::new(10));
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let mut places = [1, 5, 4, 1].map(|cost| queues.join(name.clone(), wanted(&policy(), cost)).unwrap());
    let mut last = queues.join(name.clone(), wanted(&other_policy(), 1)).unwrap();
    // Those who want as much as it do not include who can never have it.
    assert_eq!(places[0].begin_query(&queues, soon()).times, 1);
    assert!(places[0].remove(&queues).is_none());
    for place in &mut places[1..3] {
        let turn = place.poll_state(&queues, now);
        assert!(
            matches!(turn, TicketState::Over(Err(Rejection::NeverFits { .. }))),
            "{turn:?}"
        );
        assert!(place.remove(&queues).is_none());
    }
    assert!(matches!(places[3].poll_state(&queues, now), TicketState::Own(_)));
    assert_eq!(*places[3].request(), wanted(&other_policy(), 1));
    assert_eq!(places[3].begin_query(&queues, soon()).times, 2);
    assert!(places[3].remove(&queues).is_none() && last.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// It was asked for before others came, whose policies may be other ones.
#[test]
fn what_is_granted_by_policies_of_before_is_taken_by_who_wants_as_much() {
    let queues = Arc::new(WaitQueues::new(10));
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let granted = |wanted: &OwnedRequest| {
        let outcomes = smallvec![StepOutcome {
            fits: true,
            ..StepOutcome::default()
        }];
        let verdict = Verdict::new(now, outcomes);
        wanted.request(Mode::Charge).decision(verdict, Origin::Redis)
    };
    let mut places = [1, 1, 2].map(|cost| queues.join(name.clone(), wanted(&policy(), cost)).unwrap());
    let asking = places[0].begin_query(&queues, soon());
    assert_eq!(asking.times, 2);
    let mut last = queues.join(name.clone(), wanted(&other_policy(), 1)).unwrap();
    let answers = [(); 3].map(|()| Ok(granted(&asking.wanted)));
    assert_eq!(asking.hand_out(answers, |_| now).len(), 1, "one wants more");
    drop(asking);
    for place in &mut places[..2] {
        assert!(matches!(place.poll_state(&queues, now), TicketState::Over(Ok(_))));
        assert!(place.remove(&queues).is_none());
    }
    assert!(places[2].remove(&queues).is_none() && last.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// What came back between a denial and its being noted makes the denial untrue.
#[test]
fn a_denial_that_is_noted_too_late_holds_up_nobody() {
    let queues = Arc::new(WaitQueues::new(2));
    let policy = policy();
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let due = now.after(Duration::from_secs(60));
    let denied = |wanted: &OwnedRequest| {
        let outcomes = smallvec![StepOutcome::default()];
        let verdict = Verdict::new(now, outcomes);
        wanted.request(Mode::Charge).decision(verdict, Origin::Redis)
    };
    let mut place = queues.join(name.clone(), wanted(&policy, 1)).unwrap();

    let TicketState::Own(returns) = place.poll_state(&queues, now) else {
        unreachable!("it is alone")
    };
    queues.came_back(&name);
    let decision = Box::new(denied(&place.request()));
    place.denied(&queues, decision.clone(), due, returns);
    let TicketState::Own(returns) = place.poll_state(&queues, now) else {
        unreachable!("it was denied before anything came back")
    };
    place.denied(&queues, decision, due, returns);
    assert!(matches!(
        place.poll_state(&queues, now),
        TicketState::Denied(_, _)
    ));
    queues.came_back(&name);

    let asking = place.begin_query(&queues, soon());
    queues.came_back(&name);
    let untaken = asking.hand_out([Ok(denied(&asking.wanted))], |_| due);
    assert!(untaken.is_empty());
    drop(asking);
    assert!(matches!(place.poll_state(&queues, now), TicketState::Own(_)));
    let asking = place.begin_query(&queues, soon());
    let _ = asking.hand_out([Ok(denied(&asking.wanted))], |_| due);
    drop(asking);
    assert!(matches!(
        place.poll_state(&queues, now),
        TicketState::Denied(_, _)
    ));
    assert!(place.remove(&queues).is_none());
}

/// A question that is not heard of in time is lost for its line; heard of late it holds up nobody,
/// and its grants are not lost.
#[test]
fn a_question_that_is_heard_of_late_stands_in_nobodys_way() {
    let queues = Arc::new(WaitQueues::new(2));
    let policy = policy();
    let name: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let mut place = queues.join(name.clone(), wanted(&policy, 1)).unwrap();
    let lost = place.begin_query(&queues, Instant::now());
    assert!(matches!(place.poll_state(&queues, now), TicketState::Own(_)));
    let asking = place.begin_query(&queues, soon());
    let failed = StoreError::new(StoreErrorKind::Timeout, "long ago");
    assert!(lost.hand_out([Err(failed.into())], |_| now).is_empty());
    assert!(
        matches!(place.poll_state(&queues, now), TicketState::Asked(_)),
        "it is told nothing of that"
    );
    let outcomes = smallvec![StepOutcome {
        fits: true,
        ..StepOutcome::default()
    }];
    let verdict = Verdict::new(now, outcomes);
    let granted = lost.wanted.request(Mode::Charge).decision(verdict, Origin::Redis);
    let untaken = lost.hand_out([Ok(granted.clone()), Ok(granted)], |_| now);
    assert_eq!(untaken.len(), 1);
    assert!(matches!(place.poll_state(&queues, now), TicketState::Over(Ok(_))));
    drop(lost);
    let mut next = queues.join(name, wanted(&policy, 1)).unwrap();
    assert!(matches!(next.poll_state(&queues, now), TicketState::Asked(_)));
    drop(asking);
    assert!(place.remove(&queues).is_none());
    assert!(next.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// What comes back to one limit calls who waits for it beside others, in whatever order, and nobody
/// else.
#[test]
fn lines_that_have_a_limit_in_common_hear_what_comes_back_to_it() {
    let queues = Arc::new(WaitQueues::new(10));
    let policy = policy();
    let [a, b, c] = ["a", "b", "c"].map(|key| Prefix::new("tb", "p").identity(None, key));
    let names: [QueueId; 5] = [
        smallvec![a, b],
        smallvec![b, a],
        smallvec![a],
        smallvec![b, c],
        smallvec![a, b, c],
    ];
    let mut places = names
        .clone()
        .map(|name| queues.join(name, wanted(&policy, 1)).unwrap());
    let now = Timestamp::from_micros(1);
    let mut returns = || {
        places
            .each_mut()
            .map(|place| match place.poll_state(&queues, now) {
                TicketState::Own(returns) => returns,
                turn => unreachable!("{turn:?}"),
            })
    };
    assert_eq!(returns(), [0; 5]);
    queues.came_back(&smallvec![a]);
    assert_eq!(returns(), [1, 1, 1, 0, 1]);
    queues.came_back(&smallvec![c]);
    assert_eq!(returns(), [1, 1, 1, 1, 2]);
    queues.came_back(&smallvec![c, a]);
    assert_eq!(returns(), [2, 2, 2, 2, 4]);
    places
        .iter_mut()
        .for_each(|place| assert!(place.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}
