//! A question asked several times in a row is answered as it would be asked so often.

use std::time::Duration;

use limiter_testing::RedisServer;

use super::*;
use crate::clock::ManualClock;
use crate::store::MemoryStore;

const STEPS: usize = 1_500;
const MOST: usize = 12;

/// Policies of one name, between which calls alternate, as during a rollout.
fn policies(random: &mut fastrand::Rng) -> Vec<Policy> {
    let mut policies = Vec::new();
    for _ in 0..3 {
        let capacity = random.u64(1..20);
        let rates = [
            "7/3s",
            "1/s",
            "100/min",
            "999_983/day",
            "1/30d",
            "0.001/s",
            "1000000/s",
        ];
        let rate = rates[random.usize(..rates.len())];
        policies.push(
            Policy::token_bucket("p")
                .capacity(capacity)
                .rate(rate)
                .build()
                .unwrap(),
        );
        policies.push(Policy::funnel("p").capacity(capacity).rate(rate).build().unwrap());
        let window = Duration::from_millis(random.u64(1..5_000));
        policies.push(
            Policy::sliding_window("p")
                .limit(capacity)
                .window(window)
                .build()
                .unwrap(),
        );
    }
    policies
}

#[tokio::test]
async fn a_run_of_equal_questions_is_answered_as_if_they_came_one_by_one() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let server = RedisServer::start();
    let endpoint = Endpoint::parse(&server.url(), &Certificates::default()).unwrap();
    let settings = NodeSettings {
        connections: 1,
        max_in_flight: 1,
    };
    let node = Node::new(Dialer::To(endpoint), settings, Clock::System);
    let clock = ManualClock::new();
    let model = MemoryStore::new(Clock::Manual(clock.clone()), 1_000);
    let namespace = Namespace::new("", "limits");
    let policies = policies(&mut random);

    for step in 0..STEPS {
        clock.advance(Duration::from_micros(random.u64(0..1_000_000)));
        if random.u8(..20) == 0 {
            // What is spent has gone from the model, and would be there again in Redis, which keeps it for as long as a test
            // may last.
            for policy in &policies {
                let request = Request::new([Ask::new(policy, "k")], Mode::Peek, false).unwrap();
                if model.decide_now(&request).unwrap().outcomes[0].expires_after == 0 {
                    reset(&node, &model, &request, &clock).await;
                }
            }
            clock.step_back(Duration::from_micros(random.u64(0..3_000_000)));
        }
        // One limit, or up to three of different algorithms on the same key.
        let first = random.usize(..policies.len());
        let limits = if random.bool() { 1 } else { random.usize(1..=3) };
        let asks: Vec<_> = (0..limits)
            .map(|number| {
                let policy = &policies[(first + number) % policies.len()];
                let cost = random.u64(0..=policy.quota().whole().min(5));
                Ask::new(policy, "k").cost(cost)
            })
            .collect();
        let mode = if random.u8(..8) == 0 {
            Mode::Peek
        } else {
            Mode::Charge
        };
        let Ok(request) = Request::new(asks, mode, false) else {
            unreachable!("seed {seed}")
        };
        let times = random.usize(1..=MOST);
        let question = Question::new(&request, mode.into(), &namespace);
        let items = [(&question, times)];
        let call = wire::call(&items, Some(clock.now()), Duration::from_secs(5));
        let told = reply::verdicts(&node.try_run(&call, false).await.unwrap(), &items).unwrap();
        for (number, told) in told.into_iter().flatten().enumerate() {
            let expected = model.decide_now(&request).unwrap();
            let told = told.unwrap();
            assert_eq!(told.decided_at, expected.decided_at);
            assert_eq!(
                told.outcomes, expected.outcomes,
                "seed {seed}, step {step}, {number} of {times}: {request:?}"
            );
        }
        if random.u8(..40) == 0 {
            reset(&node, &model, &request, &clock).await;
        }
    }
}

/// Forgets the limits, twice over.
async fn reset(node: &Node, model: &MemoryStore, request: &Request<'_>, clock: &ManualClock) {
    let question = Question::new(request, Operation::Reset, &Namespace::new("", "limits"));
    let call = wire::call(&[(&question, 2)], Some(clock.now()), Duration::from_secs(5));
    node.try_run(&call, false).await.unwrap();
    request.limits.iter().for_each(|limit| model.forget(limit));
}
