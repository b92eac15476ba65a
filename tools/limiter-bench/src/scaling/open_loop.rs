//! Calls that arrive at a fixed rate, whether or not earlier calls have been decided.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use crate::contender::{Contender, ContenderVisitor, Decide, Setup, introduce};
use crate::keys::{Order, names};
use crate::latency::Latencies;
use crate::stage::Stage;
use crate::workload::{Load, Pace, runtime};

/// The calls of this time arrive together.
const GROUP: Duration = Duration::from_millis(1);

/// The latencies of calls of ours at this rate per second, each from its arrival.
pub(super) fn latencies(load: &Load, rate: f64, stage: &Stage, pace: Pace) -> Latencies {
    stage.server().command(&["FLUSHALL"]);
    let setup = Setup {
        address: stage.address(load.place),
        prefix: "bench-ours-open".to_owned(),
        quota: load.quota,
        mode: load.mode,
        limits: load.limits,
        keys: names(load.spread.keys()),
    };
    let arrivals = Arrivals {
        load: *load,
        rate,
        pace,
    };
    let runtime = runtime();
    let measured = runtime.block_on(introduce(Contender::Ours, setup, arrivals));
    runtime.shutdown_timeout(Duration::from_secs(1));
    measured.unwrap_or_else(Latencies::new)
}

#[derive(Debug)]
struct Arrivals {
    load: Load,
    rate: f64,
    pace: Pace,
}

impl ContenderVisitor for Arrivals {
    type Answer = Latencies;

    async fn meet<D: Decide>(self, contender: D) -> Latencies {
        let contender = Arc::new(contender);
        let arrivals = tokio::spawn(arrive(self, contender));
        let calls = arrivals.await.expect("the calls are started");
        let mut latencies = Latencies::new();
        for call in calls {
            latencies.record(call.await.expect("every call is decided"));
        }
        latencies
    }
}

/// Starts the calls. Returns those of the measured time.
async fn arrive<D: Decide>(arrivals: Arrivals, contender: Arc<D>) -> Vec<JoinHandle<Duration>> {
    let Arrivals { load, rate, pace } = arrivals;
    let mut walk = Order::new(load.spread).walk(0, 1);
    // Late ticks follow at once, so the rate is kept.
    let mut ticks = interval(GROUP);
    let (begin, per_group) = (Instant::now(), rate * GROUP.as_secs_f64());
    let (mut due, mut measured) = (0.0, Vec::new());
    loop {
        let arrival = ticks.tick().await;
        let age = arrival.saturating_duration_since(begin);
        if age > pace.warm_up + pace.window {
            return measured;
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
