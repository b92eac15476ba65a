//! A server clock that is set forward and back by an hour.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::{OnStoreFailure, Policy, PolicyBuilder};
use limiter_testing::RedisServer;

use crate::event::Event;
use crate::ledger::Quota;
use crate::load::{Load, Plan};
use crate::run::Run;
use crate::trial::{Shown, Trial};

const HOUR_MICROS: i64 = 3_600_000_000;
const PATIENT: Duration = Duration::from_secs(5);

/// Whole again after a second.
const QUOTA: Quota = Quota {
    capacity: 10,
    per_second: 10,
};
const FULL_REFILL: Duration = Duration::from_secs(1);
/// Lifetime of cached denials. A key that was denied before the step is denied in process for this
/// time, so the server processes the key, and its own step, only afterwards.
const DENIAL_CACHED: Duration = Duration::from_secs(1);
const BEFORE: Duration = Duration::from_millis(1_500);
/// Long enough to detect a key that remains denied.
const AFTER: Duration = Duration::from_millis(2_500);

/// Steps of the server's clock under load, each of a bucket, a funnel and a window: with nothing
/// remembered, and backwards with denials that are.
pub(crate) fn moved(trial: &Trial) {
    let server = RedisServer::builder().movable_clock().start();
    let steps: &[(i64, i64)] = trial.pick(
        &[(0, 1), (1, 0)],
        &[(0, 1), (1, 0), (0, -1), (-1, 0), (-1, 1), (1, -1)],
    );
    let back = steps.iter().filter(|(from, to)| to < from);
    let forgetful = steps.iter().map(|step| (step, Duration::ZERO));
    let all = forgetful.chain(back.map(|step| (step, DENIAL_CACHED)));
    for (number, ((from, to), cached)) in all.enumerate() {
        let limiters = trial.limiters_with(2, &server.url(), |builder| builder.deny_cache(cached));
        server.shift_clock(from * HOUR_MICROS);
        // Each step has its own policies with full buckets.
        let loads: Vec<(Policy, Load)> = policies(number)
            .into_iter()
            .map(|policy| {
                let plan = Plan {
                    keys: 10,
                    tasks: 8,
                    ..Plan::usual(limiters.clone(), policy.clone())
                };
                (policy, Load::start(&trial.runtime, &plan))
            })
            .collect();
        sleep(BEFORE);
        server.shift_clock(to * HOUR_MICROS);
        let stepped = Instant::now();
        sleep(AFTER);
        for (policy, load) in loads {
            let step_name = format!("{} by {:+} h", policy.name(), to - from);
            judge(trial, &step_name, &load.stop(), stepped, cached);
        }
    }
}

fn judge(trial: &Trial, step_name: &str, run: &Run, stepped: Instant, cached: Duration) {
    let errors = run.count(|event| !event.is_healthy());
    let extra = run.extra_by_true_time(QUOTA, HOUR_MICROS);
    let figure = format!(
        "{step_name}: {} extra under one key, {errors} errors",
        extra.worst
    );
    let ok = extra.worst <= QUOTA.capacity && errors == 0;
    trial
        .report
        .row(figure, format!("≤ {} (one burst)", QUOTA.capacity), ok);
    let locked_out = longest_lockout(run, stepped);
    let figure = format!("{step_name}: a key denied for {} at most", Shown(locked_out));
    let remembered = if cached.is_zero() {
        ""
    } else {
        ", and a remembered denial"
    };
    let max_locked_out = FULL_REFILL + cached;
    trial.report.row(
        figure,
        format!("≤ {} (a full refill{remembered})", Shown(max_locked_out)),
        locked_out <= max_locked_out,
    );
    trial.judge_hung(run);
}

/// Returns the longest time after the step for which every call under a key was denied, without the
/// machine's own delays.
fn longest_lockout(run: &Run, stepped: Instant) -> Duration {
    let later = run.events.iter().filter(|event| event.sent_at >= stepped);
    let mut events: Vec<&Event> = later.collect();
    events.sort_unstable_by_key(|event| event.answered());
    let mut denied_since: HashMap<u32, Instant> = HashMap::new();
    let mut longest = Duration::ZERO;
    for event in events {
        if event.allowed {
            denied_since.remove(&event.key);
        } else {
            let since = *denied_since.entry(event.key).or_insert(event.answered());
            let denied_for = event.sent_at.saturating_duration_since(since);
            longest = longest.max(run.scheduler_delay.fair(since, denied_for));
        }
    }
    longest
}

fn policies(step: usize) -> [Policy; 3] {
    let name = |algorithm: &str| format!("{algorithm} {step}");
    let bucket = Policy::token_bucket(name("bucket"))
        .capacity(QUOTA.capacity)
        .rate(QUOTA.per_second);
    let funnel = Policy::funnel(name("funnel"))
        .capacity(QUOTA.capacity)
        .rate(QUOTA.per_second);
    let window = Policy::sliding_window(name("window"))
        .limit(QUOTA.capacity)
        .window(FULL_REFILL);
    [
        patient(bucket).build(),
        patient(funnel).build(),
        patient(window).build(),
    ]
    .map(|policy| policy.expect("a valid policy"))
}

fn patient<S>(policy: PolicyBuilder<S>) -> PolicyBuilder<S> {
    policy.deadline(PATIENT).on_store_failure(OnStoreFailure::Error)
}
