//! A client with its own key that follows the headers is never denied, for all algorithms and
//! drafts and for several request patterns.

use super::*;
use std::cell::Cell;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

/// A history ends after this number of calls, if more fit in an hour.
const MAX_CALLS: u32 = 600;

/// The request pattern of a client with `r` permits in `t` seconds.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Uses all permits at once, reads each response, and waits for the reset if none remain.
    Greedy,
    /// Spreads the remaining permits over the window, and reads each response.
    Even,
    /// Sends all at the start of the window, reads no response, and sends one at its end.
    BurstAtStart,
    /// Sends all in the last microsecond of the window, reads no response, and sends one at its
    /// end.
    BurstAtEnd,
    /// Spreads them over the window, reads no response, and sends one at its end.
    EvenUnread,
}

const HABITS: [Habit; 5] = [
    Habit::Greedy,
    Habit::Even,
    Habit::BurstAtStart,
    Habit::BurstAtEnd,
    Habit::EvenUnread,
];

/// The limit that the client follows: the one with the fewest remaining permits and, of several,
/// the longest window. With a looser choice it may be denied earlier.
fn tightest(read: &[Read]) -> (u32, Duration) {
    let limit = read
        .iter()
        .min_by_key(|limit| (limit.remaining, std::cmp::Reverse(limit.window)))
        .unwrap();
    (
        limit.remaining.try_into().unwrap(),
        Duration::from_secs(limit.window.unwrap()),
    )
}

/// Sends requests for an hour, and returns their number.
async fn calls_in_an_hour(policies: &[Policy], cost: Amount, dialect: RateLimitHeaders, habit: Habit) -> u32 {
    let (limits, clock) = limiter();
    let start = clock.now();
    let calls = Cell::new(0);
    let call = async || {
        let decision = call_at(&limits, policies, cost).await;
        calls.set(calls.get() + 1);
        assert!(
            decision.is_allowed(),
            "{dialect:?}, {habit:?}, call {}: {decision:?}",
            calls.get()
        );
        tightest(&read(&headers_at(&decision, dialect, cost), dialect))
    };
    let mut state = call().await;
    while clock.now().since(start) < HOUR && calls.get() < MAX_CALLS {
        let (remaining, window) = state;
        match habit {
            _ if remaining == 0 => clock.advance(window),
            Habit::Greedy => {}
            Habit::Even => clock.advance(window / remaining),
            Habit::BurstAtStart => {
                for _ in 0..remaining {
                    call().await;
                }
                clock.advance(window);
            }
            Habit::BurstAtEnd => {
                clock.advance(window - Duration::from_micros(1));
                for _ in 0..remaining {
                    call().await;
                }
                clock.advance(Duration::from_micros(1));
            }
            Habit::EvenUnread => {
                let end = clock.now().after(window);
                for _ in 0..remaining {
                    clock.advance(window / (remaining + 1));
                    call().await;
                }
                clock.advance(end.since(clock.now()));
            }
        }
        state = call().await;
    }
    let passed = clock.now().since(start).max(Duration::from_secs(1));
    calls.get() * 3_600 / u32::try_from(passed.as_secs()).unwrap()
}

fn policies() -> Vec<(Vec<Policy>, u32)> {
    let bucket = |name: &str, capacity: f64, rate: &str| {
        let policy = Policy::token_bucket(name).capacity(capacity).rate(rate);
        policy.build().unwrap()
    };
    let sliding = |name: &str, limit: u32, window: &str| {
        let policy = Policy::sliding_window(name).limit(limit).window(window);
        policy.build().unwrap()
    };
    let funnel = Policy::funnel("funnel")
        .capacity(3)
        .rate("7/min")
        .build()
        .unwrap();
    let counter = Policy::counter_window("counter").limit(10).window("1m");
    let fixed = |name: &str, limit: u32, window: &str| Policy::fixed_window(name).limit(limit).window(window);
    // Policies with the calls that each admits in an hour.
    vec![
        (vec![bucket("bucket", 10.0, "10/min")], 600),
        (vec![bucket("one", 1.0, "7/min")], 420),
        (vec![bucket("fraction", 2.7, "1/7s")], 514),
        (vec![bucket("quick", 2.0, "3/s")], 3_600),
        (vec![funnel], 420),
        (vec![sliding("window", 10, "1m")], 600),
        (vec![sliding("odd", 3, "13001ms")], 830),
        (vec![sliding("short", 1, "700ms")], 3_600),
        (vec![counter.build().unwrap()], 600),
        (vec![fixed("fixed", 10, "1m").build().unwrap()], 600),
        (
            vec![fixed("aligned", 25, "5m").aligned("+05:30").build().unwrap()],
            300,
        ),
        (
            vec![bucket("burst", 3.0, "20/min"), sliding("hourly", 120, "1h")],
            120,
        ),
        (
            vec![
                sliding("first", 5, "10s"),
                bucket("second", 5.0, "6/min"),
                fixed("third", 40, "10m").build().unwrap(),
            ],
            240,
        ),
    ]
}

#[tokio::test]
async fn client_that_follows_headers_is_never_denied_in_an_hour() {
    for (policies, admitted) in policies() {
        for dialect in DIALECTS {
            // In all drafts except draft 10, the fields of one limit are equal.
            let alike =
                matches!(dialect, RateLimitHeaders::Draft7 | RateLimitHeaders::Legacy) && policies.len() == 1;
            for habit in HABITS.into_iter().take(if alike { 1 } else { 5 }) {
                let calls = calls_in_an_hour(&policies, Amount::ONE, dialect, habit).await;
                // The wait is exact, except for the rounding to whole seconds.
                let least = match habit {
                    Habit::Greedy | Habit::Even => admitted * 3 / 5,
                    _ => admitted / 3,
                };
                assert!(
                    calls >= least,
                    "{dialect:?}, {habit:?}: {calls} of {admitted}, {policies:?}"
                );
            }
        }
    }
}

/// The client reads each response, because the remaining permits are not a number of requests.
#[tokio::test]
async fn client_with_larger_cost_that_reads_responses_is_never_denied() {
    let mut tried = 0;
    for (policies, admitted) in policies() {
        for (cost, permits) in [(3_000, 3), (2_500, 3)] {
            let cost = Amount::from_thousandths(cost);
            let fits = |policy: &Policy| policy.quota() >= cost;
            let takes_parts = |policy: &Policy| policy.name() == "bucket";
            if !policies.iter().all(fits) || !(cost.is_whole() || policies.iter().all(takes_parts)) {
                continue;
            }
            for dialect in DIALECTS {
                for habit in [Habit::Greedy, Habit::Even] {
                    let calls = calls_in_an_hour(&policies, cost, dialect, habit).await;
                    // With one permit left of a quota of ten, the client waits for two windows.
                    assert!(
                        calls >= admitted / permits / 3,
                        "{dialect:?}, {habit:?}: {calls} at {cost:?} of {admitted}, {policies:?}"
                    );
                    tried += 1;
                }
            }
        }
    }
    assert!(tried >= 80, "{tried}");
}
