//! Calls that arrive at a fixed rate, whether or not earlier calls have been decided.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use crate::contender::{Contender, ContenderVisitor, Decide, Setup, introduce};
use crate::environment::Environment;
use crate::keys::{Order, names};
use crate::latency::Latencies;
use crate::workload::{Load, Pace, runtime};

/// The calls of this time arrive together.
const GROUP: Duration = Duration::from_millis(1);

/// The measured calls of an open loop.
#[derive(Debug)]
pub(super) struct OpenLoop {
    /// From the arrival of each call to its decision.
    pub(super) latencies: Latencies,
    /// From the end of the warm-up until all calls were decided. If more calls arrive than are
    /// decided, this is the capacity.
    pub(super) decisions_per_second: f64,
}

/// Sends calls of ours at this rate per second.
pub(super) fn measure(load: &Load, rate: f64, environment: &Environment, pace: Pace) -> OpenLoop {
    environment.server().command(&["FLUSHALL"]);
    let setup = Setup {
        address: environment.address(load.place),
        prefix: "bench-ours-open".to_owned(),
        quota: load.quota,
        mode: load.mode,
        limits: load.limits,
        keys: names(load.distribution.keys()),
    };
    let arrivals = Arrivals {
        load: *load,
        rate,
        pace,
    };
    let runtime = runtime();
    let measured = runtime.block_on(introduce(Contender::Ours, setup, arrivals));
    runtime.shutdown_timeout(Duration::from_secs(1));
    measured.expect("ours makes decisions in Redis")
}

#[derive(Debug)]
struct Arrivals {
    load: Load,
    rate: f64,
    pace: Pace,
}

impl ContenderVisitor for Arrivals {
    type Answer = OpenLoop;

    async fn meet<D: Decide>(self, contender: D) -> OpenLoop {
        let contender = Arc::new(contender);
        let arrivals = tokio::spawn(arrive(self, contender));
        let (begin, calls) = arrivals.await.expect("the calls are started");
        let (mut latencies, count) = (Latencies::new(), calls.len());
        for call in calls {
            latencies.record(call.await.expect("every call is decided"));
        }
        OpenLoop {
            latencies,
            decisions_per_second: count as f64 / begin.elapsed().as_secs_f64(),
        }
    }
}

/// Starts the calls. Returns those of the measured time, and its begin.
async fn arrive<D: Decide>(arrivals: Arrivals, contender: Arc<D>) -> (Instant, Vec<JoinHandle<Duration>>) {
    let Arrivals { load, rate, pace } = arrivals;
    let mut walk = Order::new(load.distribution).walk(0, 1);
    // Late ticks follow at once, so the rate is kept.
    let mut ticks = interval(GROUP);
    let (begin, per_group) = (Instant::now(), rate * GROUP.as_secs_f64());
    let (mut due, mut measured) = (0.0, Vec::new());
    loop {
        let arrival = ticks.tick().await;
        let age = arrival.saturating_duration_since(begin);
        if age > pace.warm_up + pace.window {
            return (begin + pace.warm_up, measured);
        }
        due += per_group;
        while due >= 1.0 {
            due -= 1.0;
            let (contender, key) = (Arc::clone(&contender), walk.next());
            let call = tokio::spawn(async move {
                contender.decide(key).await;
                arrival.elapsed()
            });
            if age > pace.warm_up {
                measured.push(call);
            }
        }
    }
}
