use std::time::Duration;

use smallvec::smallvec;

use crate::algorithm::{Mode, StepOutcome};
use crate::decision::Origin;
use crate::identity::Prefix;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest, Verdict};
use crate::wait_queue::ticket::MAX_RUN;
use crate::wait_queue::*;

pub(crate) fn wanted(policy: &Policy, cost: u32) -> OwnedRequest {
    let limit = LimitRequest::new(policy, "k").cost(cost);
    OwnedRequest::from_request(&DecisionRequest::new([limit], Mode::Charge, false).unwrap())
}

/// An expiry time that is not reached in a test.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

pub(crate) fn policy() -> Policy {
    Policy::token_bucket("p").capacity(5).rate(1).build().unwrap()
}

fn is_empty(queues: &WaitQueues) -> bool {
    let table = queues.lock();
    table.by_id.is_empty() && table.index.is_empty()
}

#[test]
fn queues_without_waiters_are_removed() {
    let queues = WaitQueues::new(4);
    let policy = policy();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let prefix = Prefix::new("tb", "p");
                let ids: Vec<_> = (0..7)
                    .map(|key| prefix.identity(None, &key.to_string()))
                    .collect();
                for id in 0..5_000 {
                    let mut ticket = queues.join(smallvec![ids[id % 7]], wanted(&policy, 1)).unwrap();
                    assert!(ticket.remove(&queues).is_none());
                }
            });
        }
    });
    assert!(is_empty(&queues));
    assert_eq!(queues.lock().count, 0);
}

#[test]
fn run_ends_at_first_different_request() {
    let queues = Arc::new(WaitQueues::new(100));
    let policy = policy();
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let join = |cost| queues.join(id.clone(), wanted(&policy, cost)).unwrap();
    let mut tickets: Vec<Ticket> = [1, 1, 1, 2, 1].map(join).into();
    let query = tickets[0].begin_query(&queues, soon());
    assert_eq!(query.repetitions, 3);
    let now = Timestamp::from_micros(0);
    assert!(matches!(
        tickets[0].poll_state(&queues, now),
        TicketState::QueryPending(_)
    ));
    assert!(matches!(tickets[1].poll_state(&queues, now), TicketState::Queued));
    drop(query);
    assert!(matches!(
        tickets[0].poll_state(&queues, now),
        TicketState::MustQuery(_)
    ));
    for _ in 0..3 {
        assert!(tickets.remove(0).remove(&queues).is_none());
    }
    assert_eq!(
        tickets[0].begin_query(&queues, soon()).repetitions,
        1,
        "a new run starts behind it"
    );
    tickets
        .iter_mut()
        .for_each(|ticket| assert!(ticket.remove(&queues).is_none()));
    let mut many: Vec<Ticket> = (0..90).map(|_| join(1)).collect();
    assert_eq!(many[0].begin_query(&queues, soon()).repetitions, MAX_RUN);
    many.iter_mut()
        .for_each(|ticket| assert!(ticket.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}

fn other_policy() -> Policy {
    Policy::token_bucket("p").capacity(3).rate(2).build().unwrap()
}

/// Calls of two call sites that disagree on a policy.
#[test]
fn mixed_policies_are_converted_up_to_run_length() {
    let queues = Arc::new(WaitQueues::new(1_000));
    let policies = [policy(), other_policy()];
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let join = |number: usize| {
        let wanted = wanted(&policies[number % 2], 1);
        queues.join(id.clone(), wanted).unwrap()
    };
    let mut tickets: Vec<Ticket> = (0..1_000).map(join).collect();
    let converted = || {
        let table = queues.lock();
        let waiters = table.by_id[&id].waiters.values();
        let last = wanted(&policies[1], 1);
        waiters.map(|waiter| *waiter.request == last).collect::<Vec<_>>()
    };
    let is_converted = converted();
    assert!(is_converted[0], "the first waiter uses the newest policies");
    assert_eq!(
        is_converted.iter().filter(|by| **by).count(),
        501,
        "no other waiter is converted"
    );
    let query = tickets[0].begin_query(&queues, soon());
    assert_eq!(query.repetitions, MAX_RUN);
    assert_eq!(
        converted().iter().filter(|by| **by).count(),
        501 + MAX_RUN / 2 - 1
    );
    drop(query);
    tickets
        .iter_mut()
        .for_each(|ticket| assert!(ticket.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}

#[test]
fn waiter_above_newest_quota_is_rejected_when_first() {
    let queues = Arc::new(WaitQueues::new(10));
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let mut tickets = [1, 5, 4, 1].map(|cost| queues.join(id.clone(), wanted(&policy(), cost)).unwrap());
    let mut last = queues.join(id.clone(), wanted(&other_policy(), 1)).unwrap();
    // The waiters with the same request do not include those that the newest policy never admits.
    assert_eq!(tickets[0].begin_query(&queues, soon()).repetitions, 1);
    assert!(tickets[0].remove(&queues).is_none());
    for ticket in &mut tickets[1..3] {
        let state = ticket.poll_state(&queues, now);
        assert!(
            matches!(state, TicketState::Resolved(Err(Rejection::NeverFits { .. }))),
            "{state:?}"
        );
        assert!(ticket.remove(&queues).is_none());
    }
    assert!(matches!(
        tickets[3].poll_state(&queues, now),
        TicketState::MustQuery(_)
    ));
    assert_eq!(*tickets[3].request(), wanted(&other_policy(), 1));
    assert_eq!(tickets[3].begin_query(&queues, soon()).repetitions, 2);
    assert!(tickets[3].remove(&queues).is_none() && last.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// The query started before later calls arrived, whose policies may differ.
#[test]
fn grant_under_previous_policy_serves_waiter_of_equal_cost() {
    let queues = Arc::new(WaitQueues::new(10));
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let granted = |wanted: &OwnedRequest| {
        let outcomes = smallvec![StepOutcome {
            fits: true,
            ..StepOutcome::default()
        }];
        let verdict = Verdict::new(now, outcomes);
        wanted.request(Mode::Charge).decision(verdict, Origin::Redis)
    };
    let mut tickets = [1, 1, 2].map(|cost| queues.join(id.clone(), wanted(&policy(), cost)).unwrap());
    let query = tickets[0].begin_query(&queues, soon());
    assert_eq!(query.repetitions, 2);
    let mut last = queues.join(id.clone(), wanted(&other_policy(), 1)).unwrap();
    let results = [(); 3].map(|()| Ok(granted(&query.requested)));
    assert_eq!(
        query.hand_out(results, |_| RetryTimes::when_due(now)).len(),
        1,
        "one waiter has a larger cost"
    );
    drop(query);
    for ticket in &mut tickets[..2] {
        assert!(matches!(
            ticket.poll_state(&queues, now),
            TicketState::Resolved(Ok(_))
        ));
        assert!(ticket.remove(&queues).is_none());
    }
    assert!(tickets[2].remove(&queues).is_none() && last.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// A refund between a denial and its recording makes the denial outdated.
#[test]
fn outdated_denial_does_not_block_waiter() {
    let queues = Arc::new(WaitQueues::new(2));
    let policy = policy();
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let due = RetryTimes::when_due(now.after(Duration::from_secs(60)));
    let denied = |wanted: &OwnedRequest| {
        let outcomes = smallvec![StepOutcome::default()];
        let verdict = Verdict::new(now, outcomes);
        wanted.request(Mode::Charge).decision(verdict, Origin::Redis)
    };
    let mut ticket = queues.join(id.clone(), wanted(&policy, 1)).unwrap();

    let TicketState::MustQuery(refunds) = ticket.poll_state(&queues, now) else {
        unreachable!("it is the only waiter")
    };
    queues.notify_refund(&id);
    let decision = Box::new(denied(&ticket.request()));
    ticket.denied(&queues, decision.clone(), due, refunds);
    let TicketState::MustQuery(refunds) = ticket.poll_state(&queues, now) else {
        unreachable!("the denial is older than the refund")
    };
    ticket.denied(&queues, decision, due, refunds);
    assert!(matches!(
        ticket.poll_state(&queues, now),
        TicketState::RetryAt(_, _)
    ));
    queues.notify_refund(&id);

    let query = ticket.begin_query(&queues, soon());
    queues.notify_refund(&id);
    let unused = query.hand_out([Ok(denied(&query.requested))], |_| due);
    assert!(unused.is_empty());
    drop(query);
    assert!(matches!(
        ticket.poll_state(&queues, now),
        TicketState::MustQuery(_)
    ));
    let query = ticket.begin_query(&queues, soon());
    let _ = query.hand_out([Ok(denied(&query.requested))], |_| due);
    drop(query);
    assert!(matches!(
        ticket.poll_state(&queues, now),
        TicketState::RetryAt(_, _)
    ));
    assert!(ticket.remove(&queues).is_none());
}

/// A query without a reply in time is lost for its queue; its late reply blocks no waiter, and its
/// grants are not lost.
#[test]
fn late_reply_of_lost_query_blocks_no_waiter() {
    let queues = Arc::new(WaitQueues::new(2));
    let policy = policy();
    let id: QueueId = smallvec![Prefix::new("tb", "p").identity(None, "k")];
    let now = Timestamp::from_micros(1);
    let mut ticket = queues.join(id.clone(), wanted(&policy, 1)).unwrap();
    let lost = ticket.begin_query(&queues, Instant::now());
    assert!(matches!(
        ticket.poll_state(&queues, now),
        TicketState::MustQuery(_)
    ));
    let query = ticket.begin_query(&queues, soon());
    let failed = StoreError::new(StoreErrorKind::Timeout, "long ago");
    assert!(
        lost.hand_out([Err(failed.into())], |_| RetryTimes::when_due(now))
            .is_empty()
    );
    assert!(
        matches!(ticket.poll_state(&queues, now), TicketState::QueryPending(_)),
        "it does not receive the outdated failure"
    );
    let outcomes = smallvec![StepOutcome {
        fits: true,
        ..StepOutcome::default()
    }];
    let verdict = Verdict::new(now, outcomes);
    let granted = lost
        .requested
        .request(Mode::Charge)
        .decision(verdict, Origin::Redis);
    let unused = lost.hand_out([Ok(granted.clone()), Ok(granted)], |_| RetryTimes::when_due(now));
    assert_eq!(unused.len(), 1);
    assert!(matches!(
        ticket.poll_state(&queues, now),
        TicketState::Resolved(Ok(_))
    ));
    drop(lost);
    let mut next = queues.join(id, wanted(&policy, 1)).unwrap();
    assert!(matches!(
        next.poll_state(&queues, now),
        TicketState::QueryPending(_)
    ));
    drop(query);
    assert!(ticket.remove(&queues).is_none());
    assert!(next.remove(&queues).is_none());
    assert!(is_empty(&queues));
}

/// A refund of one limit notifies the queues that contain it beside others, in any order, and no
/// other queue.
#[test]
fn refund_notifies_queues_that_share_limit() {
    let queues = Arc::new(WaitQueues::new(10));
    let policy = policy();
    let [a, b, c] = ["a", "b", "c"].map(|key| Prefix::new("tb", "p").identity(None, key));
    let ids: [QueueId; 5] = [
        smallvec![a, b],
        smallvec![b, a],
        smallvec![a],
        smallvec![b, c],
        smallvec![a, b, c],
    ];
    let mut tickets = ids.clone().map(|id| queues.join(id, wanted(&policy, 1)).unwrap());
    let now = Timestamp::from_micros(1);
    let mut refunds = || {
        tickets
            .each_mut()
            .map(|ticket| match ticket.poll_state(&queues, now) {
                TicketState::MustQuery(refunds) => refunds,
                state => unreachable!("{state:?}"),
            })
    };
    assert_eq!(refunds(), [0; 5]);
    queues.notify_refund(&smallvec![a]);
    assert_eq!(refunds(), [1, 1, 1, 0, 1]);
    queues.notify_refund(&smallvec![c]);
    assert_eq!(refunds(), [1, 1, 1, 1, 2]);
    queues.notify_refund(&smallvec![c, a]);
    assert_eq!(refunds(), [2, 2, 2, 2, 4]);
    tickets
        .iter_mut()
        .for_each(|ticket| assert!(ticket.remove(&queues).is_none()));
    assert!(is_empty(&queues));
}
