//! Removed scripts, and a script that does not end.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use limiter_testing::RedisServer;

use crate::baseline;
use crate::ledger::Outages;
use crate::load::{Load, Plan};
use crate::trial::{Trial, patient_policy, usual_policy};

const FLUSH_EVERY: Duration = Duration::from_millis(5);

/// `SCRIPT FLUSH` every 5 ms: any call can find the script missing.
pub(crate) fn flush(trial: &Trial) {
    let server = RedisServer::start();
    let plan = Plan::usual(trial.limiters(2, &server.url()), patient_policy());
    let load = Load::start(&trial.runtime, &plan);
    let (began, lasts) = (
        Instant::now(),
        trial.pick(Duration::from_secs(3), Duration::from_secs(15)),
    );
    let mut flushed = 0;
    while began.elapsed() < lasts {
        server.command(&["SCRIPT", "FLUSH"]);
        flushed += 1;
        sleep(FLUSH_EVERY);
    }
    let run = load.stop();
    let forgotten = errors(&server, "NOSCRIPT");
    let figure = format!("{forgotten} of {} calls met {flushed} flushes", run.events.len());
    trial.report.row(figure, "some", forgotten > 0);
    let figure = format!(
        "{} errors seen by callers: {}",
        run.count(|event| !event.is_healthy()),
        run.failure_summary()
    );
    trial
        .report
        .row(figure, "0", run.count(|event| !event.is_healthy()) == 0);
    trial.judge_hung(&run);
    trial.judge_extra(&run, Outages::None, 0);
}

/// A script that does not end makes the server answer `BUSY`, until `SCRIPT KILL`.
pub(crate) fn busy(trial: &Trial) {
    let server = RedisServer::builder().arg("lua-time-limit", "100").start();
    let load = Load::start_with_probes(
        &trial.runtime,
        &Plan::usual(trial.limiters(2, &server.url()), usual_policy()),
    );
    load.watch(&server);
    sleep(Duration::from_secs(1));
    let began = Instant::now();
    let waiting = thread::scope(|scope| {
        scope.spawn(|| server.try_command(&["EVAL", "while true do end", "0"]));
        sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(8)));
        let waiting = baseline::until_writable(server.port());
        server.command(&["SCRIPT", "KILL"]);
        waiting
    });
    let back = waiting.answered_at();
    sleep(Duration::from_secs(2));
    let run = load.stop();
    let busy = run.count(|event| event.has_code("BUSY"));
    trial
        .report
        .row(format!("{busy} calls answered BUSY"), "some", busy > 0);
    trial.judge_decision_time(&run, began, back);
    trial.judge_recovery(&run, back);
    trial.judge_extra(&run, Outages::Any, 0);
}

/// Returns the number of replies with this error code.
fn errors(server: &RedisServer, code: &str) -> u64 {
    let stats = server.command(&["INFO", "errorstats"]).text();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
