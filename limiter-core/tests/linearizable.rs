//! Concurrent calls are linearizable: the histories of several tasks on a few keys are recorded,
//! and for each there must be an order in which a sequential model returns the recorded results.
//! The clock moves only while no call is in flight. Cancelled calls may be charged later or not at
//! all.
//!
//! `LIMITER_HISTORIES` sets the number of histories. `LIMITER_SEED` repeats the operations of the
//! tasks, but not their interleaving.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "the seed repeats a failed run")]

#[path = "linearizable/model.rs"]
mod model;
#[path = "linearizable/search.rs"]
mod search;
mod support;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use limiter_core::{Decision, LimitRequest, Limiter, ManualClock, Policy};
use model::{Answer, Question, Shape};
use search::{Call, explain};
use support::{Kind, Subject};

const KEYS: usize = 2;
const TASKS: usize = 4;
const PHASES: usize = 3;
const CALLS_OF_A_PHASE: usize = 2;
/// Keys of one group, which one decision can contain.
const GROUP: &str = "g";

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// The order in which calls begin and end.
#[derive(Debug, Default)]
struct Ticks(AtomicU64);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// State shared by all tasks of a history.
#[derive(Clone)]
struct Simulation {
    limits: Limiter,
    clock: ManualClock,
    policy: Policy,
    /// Unique for this history.
    name: u64,
    ticks: Arc<Ticks>,
}

impl Simulation {
    fn key(&self, key: usize) -> limiter_core::Key<'static> {
        let group = format!("{GROUP}{}", self.name);
        limiter_core::Key::from(key as u64).in_group(group)
    }

    /// Makes one call, and cancels it if it has not completed after this number of turns of the
    /// other tasks.
    async fn call(&self, question: Question, patience: Option<u32>) -> Call {
        let moment = self.clock.now().as_micros();
        let began = self.ticks.next();
        let unknown = Call {
            question: question.clone(),
            moment,
            began,
            ended: None,
        };
        let executed = pin!(self.ask(&question));
        let answer = match patience {
            None => Some(executed.await),
            Some(turns) => tokio::select! {
                biased;
                answer = executed => Some(answer),
                () = pass(turns) => None,
            },
        };
        match answer {
            Some(Some(answer)) => Call {
                ended: Some((self.ticks.next(), answer)),
                ..unknown
            },
            Some(None) | None => unknown,
        }
    }

    /// `None` where the outcome is unknown: others were cancelled on the same connection, until it
    /// was given up.
    async fn ask(&self, question: &Question) -> Option<Answer> {
        let ask = |(key, cost): &(usize, u64)| LimitRequest::new(&self.policy, self.key(*key)).cost(*cost);
        match question {
            Question::Check(limits) => answer(self.limits.check_all(limits.iter().map(ask)).await),
            Question::Peek(limits) => answer(self.limits.peek_all(limits.iter().map(ask)).await),
            Question::Reset(key) => {
                let done = self.limits.reset(&self.policy, self.key(*key)).await;
                done.ok().map(|()| Answer::Done)
            }
        }
    }
}

fn answer(decision: Result<Decision, limiter_core::Rejection>) -> Option<Answer> {
    let decision = decision.ok()?;
    let facts = decision.limits().iter().map(model::facts).collect();
    Some(Answer::Decided(decision.decided_at().as_micros(), facts))
}

async fn pass(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

fn question(rng: &mut Rng, shape: Shape) -> Question {
    let limits = |rng: &mut Rng| {
        let mut keys: Vec<usize> = (0..KEYS).collect();
        rng.shuffle(&mut keys);
        keys.truncate(if rng.u8(..4) == 0 { 2 } else { 1 });
        keys.into_iter()
            .map(|key| (key, rng.u64(1..=shape.quota.min(3))))
            .collect()
    };
    match rng.u8(..10) {
        0 => Question::Reset(rng.usize(..KEYS)),
        1 | 2 => Question::Peek(limits(rng)),
        _ => Question::Check(limits(rng)),
    }
}

/// Records a history of several tasks: in each phase all tasks call at one time, as fast as they
/// can.
async fn record(rng: &mut Rng, shape: Shape, simulation: &Simulation, cancel: bool) -> Vec<Call> {
    let mut history = Vec::new();
    for _ in 0..PHASES {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (simulation, mut rng) = (simulation.clone(), rng.fork());
            tasks.spawn(async move {
                let mut calls = Vec::new();
                for _ in 0..CALLS_OF_A_PHASE {
                    let impatient = cancel && rng.u8(..4) == 0;
                    let patience = impatient.then(|| rng.u32(..40));
                    calls.push(simulation.call(question(&mut rng, shape), patience).await);
                }
                calls
            });
        }
        history.extend(tasks.join_all().await.into_iter().flatten());
        // Far enough that a difference of one microsecond is visible.
        let span = rng.u64(10..shape.period * 2);
        simulation.clock.advance(Duration::from_micros(span));
    }
    history
}

async fn histories_are_explained(kind: Kind, default: u64) {
    let (count, seed) = (
        setting("LIMITER_HISTORIES", default),
        setting("LIMITER_SEED", fastrand::u64(..)),
    );
    println!("LIMITER_SEED={seed} LIMITER_HISTORIES={count}");
    // A decision without Redis reflects an earlier time, before the charges of other tasks.
    let subject = Subject::without_deny_cache(kind, ManualClock::new());
    subject.limits.ready().await.unwrap();
    let (mut answered, mut unknown, mut overlapping) = (0, 0, 0);
    for number in 0..count {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let shape = Shape::random(&mut rng);
        let simulation = Simulation {
            limits: subject.limits.clone(),
            clock: subject.clock.clone(),
            policy: shape.policy(&format!("p{number}")),
            name: number,
            ticks: Arc::default(),
        };
        let history = record(&mut rng, shape, &simulation, number % 2 == 1).await;
        answered += history.iter().filter(|call| call.ended.is_some()).count();
        unknown += history.iter().filter(|call| call.ended.is_none()).count();
        overlapping += search::overlapping(&history);
        assert!(
            explain(shape, KEYS, &history),
            "no order explains {shape:?}: {history:#?}"
        );
        // The search must be able to fail.
        if let Some(false_history) = search::with_wrong_result(&history, &mut rng) {
            assert!(
                !explain(shape, KEYS, &false_history),
                "an order explains a wrong history: {false_history:#?}"
            );
        }
    }
    println!("{kind:?}: {answered} answered, {unknown} of unknown outcome, {overlapping} pairs at once");
    assert!(answered > unknown && overlapping > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_in_process_are_linearizable() {
    histories_are_explained(Kind::Memory, 3_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_a_server_are_linearizable() {
    histories_are_explained(Kind::Standalone, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_a_cluster_are_linearizable() {
    histories_are_explained(Kind::Cluster, 300).await;
}
