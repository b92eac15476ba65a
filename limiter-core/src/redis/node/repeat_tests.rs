//! Differential test: a batch with repeated requests gives the replies of the same requests one by
//! one.

use std::time::Duration;

use limiter_testing::RedisServer;

use crate::algorithm::Mode;
use crate::memory::MemoryStore;
use crate::policy::Policy;
use crate::redis::client::connection::Asking;
use crate::redis::node::{self, Node};
use crate::redis::script::wire::ScriptInput;
use crate::redis::script::{reply, wire};
use crate::redis::*;
use crate::request::LimitRequest;
use crate::support::clock::ManualClock;

const STEPS: usize = 1_500;
const MOST: usize = 12;
const KEYS: [&str; 3] = ["k", "l", "m"];

/// Versions of one policy that alternate, as during a rollout.
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
        let funnel = Policy::funnel("p").capacity(capacity).rate(rate);
        let funnel = if random.bool() { funnel.paced() } else { funnel };
        policies.push(funnel.build().unwrap());
        let window = Duration::from_millis(random.u64(1..5_000));
        policies.push(
            Policy::sliding_window("p")
                .limit(capacity)
                .window(window)
                .build()
                .unwrap(),
        );
        let counter = Policy::counter_window("p").limit(capacity).window(window);
        policies.push(counter.build().unwrap());
        let fixed = Policy::fixed_window("p").limit(capacity);
        let fixed = match random.u8(..3) {
            0 => fixed.window(window),
            1 => fixed.window("2s").aligned("+00:01"),
            _ => fixed.window("month").aligned("-02:30"),
        };
        policies.push(fixed.build().unwrap());
    }
    policies
}

#[tokio::test]
async fn batch_equals_sequential_requests() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let server = RedisServer::start();
    let node = node::tests::node_of(&server);
    let clock = ManualClock::new();
    let model = MemoryStore::new(Clock::Manual(clock.clone()), 1_000);
    let namespace = Namespace::new("", "limits");
    let policies = policies(&mut random);

    for step in 0..STEPS {
        clock.advance(Duration::from_micros(random.u64(0..1_000_000)));
        if random.u8(..20) == 0 {
            // The model drops expired state. Redis keeps it for its TTL, which may exceed the
            // duration of a test.
            for policy in &policies {
                for key in KEYS {
                    let request =
                        DecisionRequest::new([LimitRequest::new(policy, key)], Mode::Peek, false).unwrap();
                    if model.decide_now(&request).unwrap().outcomes[0].expires_after == 0 {
                        reset(&node, &model, &request, &clock).await;
                    }
                }
            }
            clock.step_back(Duration::from_micros(random.u64(0..3_000_000)));
        }
        let requests = batch(&mut random, &policies);
        let inputs: Vec<_> = requests
            .iter()
            .map(|(request, times)| (ScriptInput::new(request, request.mode.into(), &namespace), *times))
            .collect();
        let items: Vec<_> = inputs.iter().map(|(input, times)| (input, *times)).collect();
        let call = wire::call(&items, Some(clock.now()), Duration::from_secs(5));
        let replies = reply::verdicts(&node.try_run(&call, Asking::Omitted).await.unwrap(), &items).unwrap();
        for ((request, _), replies) in requests.iter().zip(replies) {
            for (number, replies) in replies.into_iter().enumerate() {
                let mut expected = model.decide_now(request).unwrap();
                // All limits share the clock of Redis.
                expected
                    .outcomes
                    .iter_mut()
                    .for_each(|outcome| outcome.whole_at = 0);
                let replies = replies.unwrap();
                assert_eq!(replies.decided_at, expected.decided_at);
                assert_eq!(
                    replies.outcomes, expected.outcomes,
                    "seed {seed}, step {step}, time {number} of {request:?} in {requests:?}"
                );
            }
        }
        if random.u8(..40) == 0 {
            reset(&node, &model, &requests[0].0, &clock).await;
        }
    }
}

/// Random requests with their repetitions. Many of them repeat the previous request with another
/// key.
fn batch<'a>(random: &mut fastrand::Rng, policies: &'a [Policy]) -> Vec<(DecisionRequest<'a>, usize)> {
    let mut requests = Vec::new();
    while requests.is_empty() || random.u8(..3) > 0 {
        let first = random.usize(..policies.len());
        // One limit, or up to three of different algorithms on the same key.
        let limits = if random.u8(..4) > 0 {
            1
        } else {
            random.usize(1..=3)
        };
        let policies = (first..first + limits).map(|number| &policies[number % policies.len()]);
        let costs = policies.map(|policy| (policy, random.u64(0..=policy.quota().whole().min(5))));
        let costs: Vec<_> = costs.collect();
        let mode = if random.u8(..8) == 0 {
            Mode::Peek
        } else {
            Mode::Charge
        };
        let times = if random.bool() { 1 } else { random.usize(1..=MOST) };
        for _ in 0..random.usize(1..4) {
            let key = KEYS[random.usize(..KEYS.len())];
            let limits = costs
                .iter()
                .map(|(policy, cost)| LimitRequest::new(policy, key).cost(*cost));
            requests.push((DecisionRequest::new(limits, mode, false).unwrap(), times));
        }
    }
    requests
}

/// Deletes the limits in Redis and in the model.
async fn reset(node: &Node, model: &MemoryStore, request: &DecisionRequest<'_>, clock: &ManualClock) {
    let input = ScriptInput::new(request, Operation::Reset, &Namespace::new("", "limits"));
    let call = wire::call(&[(&input, 2)], Some(clock.now()), Duration::from_secs(5));
    node.try_run(&call, Asking::Omitted).await.unwrap();
    request.limits.iter().for_each(|limit| model.forget(limit));
}
