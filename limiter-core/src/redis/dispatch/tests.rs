use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepOutcome};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Namespace;
use crate::policy::Policy;
use crate::redis::client::connection::Asking;
use crate::redis::dispatch::*;
use crate::redis::script::wire::{InputDraft, Operation};
use crate::request::{DecisionRequest, LimitRequest, Verdict};
use crate::units::Timestamp;

/// A check of these costs on these keys.
pub(crate) fn check(limits: &[(&str, u64)]) -> InputDraft<'static, 'static> {
    input(limits, Operation::Check)
}

fn policy() -> Policy {
    Policy::token_bucket("p").capacity(10).rate(1).build().unwrap()
}

/// An input borrows its request and namespace, which are leaked here.
fn input(limits: &[(&str, u64)], operation: Operation) -> InputDraft<'static, 'static> {
    let policy: &'static Policy = Box::leak(Box::new(policy()));
    let limits = limits
        .iter()
        .map(|(key, cost)| LimitRequest::new(policy, (*key).to_owned()).cost(*cost));
    let request = DecisionRequest::new(limits, Mode::Charge, true).unwrap();
    let namespace = Box::leak(Box::new(Namespace::new("", "n")));
    InputDraft::new(Box::leak(Box::new(request)), operation, namespace)
}

/// A verdict that can be recognised by its number.
pub(crate) fn verdict(number: u64) -> Verdict {
    Verdict::new(
        Timestamp::from_micros(number),
        SmallVec::from_iter([StepOutcome::default()]),
    )
}

/// A queue whose batches are started manually.
fn batch_queue() -> (Arc<BatchQueue>, Arc<Mutex<Vec<BatchStart>>>) {
    let starts = Arc::<Mutex<Vec<BatchStart>>>::default();
    let due = Arc::clone(&starts);
    (BatchQueue::new(move |start| due.lock().push(start)), starts)
}

fn next(starts: &Mutex<Vec<BatchStart>>) -> Option<BatchStart> {
    starts.lock().pop()
}

fn wait() -> CallDeadline {
    CallDeadline::after(Duration::from_secs(1))
}

/// Adds a caller to a queue.
fn enqueue(queue: &mut Queue, part: BatchPart, input: &InputDraft<'_, '_>) -> oneshot::Receiver<BatchReply> {
    let (caller, receiver) = BatchCaller::new(wait());
    queue.push(part, input, caller);
    receiver
}

fn enter(batch_queue: &Arc<BatchQueue>, limits: &[(&str, u64)]) -> oneshot::Receiver<BatchReply> {
    match batch_queue.enter(BatchPart::default(), &check(limits), wait()) {
        Admission::Waits(answer) => answer,
        Admission::Alone(_) => unreachable!("the node is busy"),
    }
}

fn alone(batch_queue: &Arc<BatchQueue>) -> InFlightBatch {
    match batch_queue.enter(BatchPart::default(), &check(&[("alone", 1)]), wait()) {
        Admission::Alone(slot) => slot,
        Admission::Waits(_) => unreachable!("the node is idle"),
    }
}

/// Costs of the entries' limits, and the number of callers of each entry.
fn shape(entries: &[QueuedCall]) -> Vec<(u64, usize)> {
    let cost = |entry: &QueuedCall| entry.input.limits[0].cost / 1_000;
    entries
        .iter()
        .map(|entry| (cost(entry), entry.callers.len()))
        .collect()
}

#[test]
fn solo_call_is_immediate_and_later_calls_share_batch() {
    let (batch_queue, starts) = batch_queue();
    let first = alone(&batch_queue);
    let _answers = ["a", "b", "c"].map(|key| enter(&batch_queue, &[(key, 1)]));
    let start = next(&starts).unwrap();
    assert!(next(&starts).is_none(), "one batch for all of them");
    let (entries, slot) = start.take_batch().unwrap();
    assert_eq!(entries.len(), 3);

    let _answer = enter(&batch_queue, &[("d", 1)]);
    assert!(next(&starts).is_none(), "both slots are taken");
    drop(first);
    drop(slot);
    let (entries, slot) = next(&starts).unwrap().take_batch().unwrap();
    assert_eq!(entries.len(), 1);
    drop(slot);
    assert!(next(&starts).is_none());
    drop(alone(&batch_queue));
}

#[test]
fn full_batch_does_not_wait_for_slot() {
    let (batch_queue, starts) = batch_queue();
    let _first = alone(&batch_queue);
    let _answer = enter(&batch_queue, &[("second", 1)]);
    let _second = next(&starts).unwrap().take_batch();
    let keys: Vec<String> = (0..queue::MAX_REQUESTS).map(|key| key.to_string()).collect();
    let _answers: Vec<_> = keys.iter().map(|key| enter(&batch_queue, &[(key, 1)])).collect();
    let (entries, _third) = next(&starts).unwrap().take_batch().unwrap();
    assert_eq!(entries.len(), queue::MAX_REQUESTS);
    let _answer = enter(&batch_queue, &[("one more", 1)]);
    assert!(next(&starts).is_none());
}

#[test]
fn released_slot_starts_next_batch_once() {
    let (batch_queue, starts) = batch_queue();
    let _first = alone(&batch_queue);
    let _answer = enter(&batch_queue, &[("second", 1)]);
    let (_, mut second) = next(&starts).unwrap().take_batch().unwrap();
    let _answer = enter(&batch_queue, &[("third", 1)]);
    second.release();
    let (_, _third) = next(&starts).unwrap().take_batch().unwrap();
    drop(second);
    let _answer = enter(&batch_queue, &[("fourth", 1)]);
    assert!(next(&starts).is_none(), "the slot was released once");
}

/// The caller may keep its future without polling it.
#[test]
fn late_solo_call_loses_slot() {
    let (batch_queue, starts) = batch_queue();
    let first = alone(&batch_queue);
    let _answer = enter(&batch_queue, &[("second", 1)]);
    let (_, second) = next(&starts).unwrap().take_batch().unwrap();
    let _answer = enter(&batch_queue, &[("third", 1)]);
    assert!(next(&starts).is_none(), "the solo call is not late yet");
    batch_queue.lock().alone.as_mut().unwrap().late_at = Instant::now();
    let _answer = enter(&batch_queue, &[("fourth", 1)]);
    let (entries, third) = next(&starts).unwrap().take_batch().unwrap();
    assert_eq!(entries.len(), 2);
    let _answer = enter(&batch_queue, &[("fifth", 1)]);
    drop(first);
    assert!(next(&starts).is_none(), "the slot was released once");
    drop((second, third));
    let (_, fourth) = next(&starts).unwrap().take_batch().unwrap();
    drop(fourth);
    drop(alone(&batch_queue));
    assert_eq!(batch_queue.lock().taken, 0);
}

#[test]
fn first_reply_has_longer_late_bound() {
    let (batch_queue, _starts) = batch_queue();
    let first = alone(&batch_queue);
    assert_eq!(first.late_at() - first.began, FIRST_LATE_AFTER);
    let late_after = |micros| {
        batch_queue.lock().round_trip = Duration::from_micros(micros);
        first.late_at() - first.began
    };
    assert_eq!(late_after(80), LATE_AFTER);
    assert_eq!(late_after(40_000), Duration::from_millis(160));
}

#[test]
fn dropped_start_fails_waiting_callers() {
    let (batch_queue, starts) = batch_queue();
    let first = alone(&batch_queue);
    let mut answers = ["a", "b"].map(|key| enter(&batch_queue, &[(key, 1)]));
    drop(next(&starts));
    for answer in &mut answers {
        assert_eq!(
            answer.try_recv().unwrap_err(),
            oneshot::error::TryRecvError::Closed
        );
    }
    drop(first);
    drop(alone(&batch_queue));
}

#[test]
fn longer_round_trip_allows_more_batches() {
    let (batch_queue, _starts) = batch_queue();
    let mut state = batch_queue.lock();
    for (micros, slots) in [(0, 2), (80, 2), (500, 4), (2_000, 10), (20_000, MAX_SLOTS)] {
        state.round_trip = Duration::from_micros(micros);
        assert_eq!(state.slots(), slots, "{micros} us");
    }
    state.round_trip = Duration::MAX;
    assert_eq!(state.slots(), 2, "unknown round trip");
}

#[test]
fn equal_requests_share_entry_and_keep_order() {
    let mut queue = Queue::default();
    let push = |queue: &mut Queue| enqueue(queue, BatchPart::default(), &check(&[("k", 1)]));
    let mut answers: Vec<_> = (0..100).map(|_| push(&mut queue)).collect();
    let mut entries = queue.drain();
    assert_eq!(shape(&entries), [(1, 100)]);
    let entry = entries.pop().unwrap();
    entry.send_replies((0..100).map(|number| Ok(verdict(number))));
    for (number, answer) in answers.iter_mut().enumerate() {
        let decided_at = answer.try_recv().unwrap().unwrap().decided_at;
        assert_eq!(decided_at, Timestamp::from_micros(number as u64));
    }
}

#[test]
fn caller_after_join_builds_input_only_if_unmatched() {
    let (batch_queue, _starts) = batch_queue();
    let _first = alone(&batch_queue);
    let _answers: Vec<_> = (0..2).map(|_| enter(&batch_queue, &[("hot", 1)])).collect();
    assert!(batch_queue.joins.load(Ordering::Relaxed));
    let (policy, namespace) = (policy(), Namespace::new("", "n"));
    let builds_input = |key: &str| {
        let request = DecisionRequest::new([LimitRequest::new(&policy, key)], Mode::Charge, false).unwrap();
        let draft = InputDraft::new(&request, Operation::Check, &namespace);
        let entered = batch_queue.enter(BatchPart::default(), &draft, wait());
        assert!(matches!(entered, Admission::Waits(_)));
        draft.is_built()
    };
    assert!(!builds_input("hot"));
    assert!(builds_input("other") && !batch_queue.joins.load(Ordering::Relaxed));
    assert!(builds_input("hot"), "before the lock is taken");
    assert!(!builds_input("hot"));
}

#[test]
fn caller_does_not_join_across_entry_with_shared_key() {
    let part = BatchPart::default();
    let between = [
        (part, check(&[("k", 2)])),
        (part, check(&[("other", 1), ("k", 1)])),
        (part, input(&[("k", 1)], Operation::Peek)),
        (part, input(&[("k", 0)], Operation::Reset)),
        (
            BatchPart {
                slot: 7,
                asking: Asking::Required,
            },
            check(&[("k", 1)]),
        ),
    ];
    for (part, input) in between {
        let mut queue = Queue::default();
        let same = || check(&[("k", 1)]);
        let _answers = [
            enqueue(&mut queue, BatchPart::default(), &same()),
            enqueue(&mut queue, BatchPart::default(), &check(&[("elsewhere", 3)])),
            enqueue(&mut queue, BatchPart::default(), &same()),
            enqueue(&mut queue, part, &input),
            enqueue(&mut queue, BatchPart::default(), &same()),
            enqueue(&mut queue, BatchPart::default(), &same()),
        ];
        let entries = queue.drain();
        let callers: Vec<_> = entries.iter().map(|entry| entry.callers.len()).collect();
        assert_eq!(callers, [2, 1, 1, 2], "{input:?}");
    }
}

#[test]
fn requests_are_equal_only_with_equal_limits_in_order() {
    let mut queue = Queue::default();
    let mut push = |limits: &[(&str, u64)]| enqueue(&mut queue, BatchPart::default(), &check(limits));
    let _answers = [
        push(&[("a", 1), ("b", 1)]),
        push(&[("a", 1), ("b", 1)]),
        push(&[("b", 1), ("a", 1)]),
        push(&[("a", 1)]),
        push(&[("b", 1), ("a", 1)]),
    ];
    let callers: Vec<_> = queue.drain().iter().map(|entry| entry.callers.len()).collect();
    assert_eq!(callers, [2, 1, 1, 1]);
}

#[test]
fn batch_is_bounded_and_rest_stays_joinable() {
    let mut queue = Queue::default();
    let mut answers = Vec::new();
    for _ in 0..5_000 {
        answers.push(enqueue(&mut queue, BatchPart::default(), &check(&[("hot", 1)])));
    }
    for key in 0..70_u64 {
        answers.push(enqueue(
            &mut queue,
            BatchPart::default(),
            &check(&[(&key.to_string(), 2)]),
        ));
    }
    assert_eq!(shape(&queue.drain()), [(1, 4_096)]);
    let entries = queue.drain();
    assert_eq!((entries.len(), entries[0].callers.len()), (64, 904));
    answers.push(enqueue(&mut queue, BatchPart::default(), &check(&[("69", 2)])));
    let entries = queue.drain();
    assert_eq!(shape(&entries)[5..], [(2, 1), (2, 2)]);
    assert!(queue.entries.is_empty() && queue.drain().is_empty());
}

#[test]
fn cancelled_caller_is_removed_from_batch() {
    let mut queue = Queue::default();
    let mut push = |key: &str| enqueue(&mut queue, BatchPart::default(), &check(&[(key, 1)]));
    let (stays, leaves, alone) = (push("k"), push("k"), push("other"));
    drop((leaves, alone));
    let mut entries = queue.drain();
    entries.retain_mut(QueuedCall::is_awaited);
    assert_eq!(shape(&entries), [(1, 1)]);
    drop(stays);
}

#[test]
fn rejected_deadlines_leave_the_queue_and_other_calls_keep_their_order() {
    let (batch_queue, starts) = batch_queue();
    let slot = alone(&batch_queue);
    let enter_within = |key: &str, deadline| {
        let wait = CallDeadline::after(deadline);
        match batch_queue.enter(BatchPart::default(), &check(&[(key, 1)]), wait) {
            Admission::Waits(answer) => answer,
            Admission::Alone(_) => unreachable!("the node is busy"),
        }
    };
    let (short, long) = (Duration::from_millis(12), Duration::from_secs(1));
    let mut rejected = [enter_within("a", short), enter_within("b", short)];
    let _kept = [enter_within("b", long), enter_within("c", long)];
    let failure = Failure::Undecided(StoreError::new(StoreErrorKind::CircuitOpen, "open"));
    batch_queue.fail_waiting(|wait| wait.deadline() <= short, &failure);
    assert!(
        rejected
            .iter_mut()
            .all(|answer| answer.try_recv().unwrap().is_err())
    );
    let (entries, batch) = next(&starts).unwrap().take_batch().unwrap();
    assert_eq!(shape(&entries), [(1, 1), (1, 1)]);
    drop((slot, batch));
}
