//! Outages of a server: killed, stopped, with paused clients, and behind a black hole.

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::Policy;
use limiter_testing::{Proxy, RedisServer};

use crate::baseline;
use crate::event::Event;
use crate::ledger::Outages;
use crate::load::{Load, Plan};
use crate::trial::{Shown, Trial, usual_policy};

/// Time before and after the fault.
const CALM: Duration = Duration::from_secs(1);
/// Long enough for a limiter's second call to hang on the same connection.
const BLINK: Duration = Duration::from_millis(30);

/// Killed and restarted: the connections break at once, new ones are refused, and the data is lost.
pub(crate) fn kill(trial: &Trial) {
    let server = RedisServer::start();
    let load = start(trial, &server, &server.url());
    let began = Instant::now();
    server.kill();
    sleep(trial.pick(Duration::from_secs(3), Duration::from_secs(15)));
    let waiting = baseline::until_writable(server.port());
    server.restart();
    let back = waiting.answered_at();
    load.watch(&server);
    // The server kept no data.
    finish(trial, load, Vec::new(), (began, back), 1);
}

/// A stopped server: connections stay open and new ones are accepted, but no replies arrive until
/// it is resumed.
pub(crate) fn stop(trial: &Trial) {
    let server = RedisServer::start();
    let load = start(trial, &server, &server.url());
    let began = Instant::now();
    server.pause();
    sleep(trial.pick(Duration::from_secs(3), Duration::from_secs(10)));
    let waiting = baseline::until_writable(server.port());
    server.resume();
    finish(trial, load, Vec::new(), (began, waiting.answered_at()), 0);
}

/// `CLIENT PAUSE`: as stopped, but the server itself lets its clients wait.
pub(crate) fn client_pause(trial: &Trial) {
    let server = RedisServer::start();
    let load = start(trial, &server, &server.url());
    let began = Instant::now();
    let pause = trial.pick(1_500, 5_000);
    server.command(&["CLIENT", "PAUSE", &format!("{pause}"), "ALL"]);
    let waiting = baseline::until_writable(server.port());
    finish(trial, load, Vec::new(), (began, waiting.answered_at()), 0);
}

/// Once for a blink, after which only the connections from before are dead; once for longer.
pub(crate) fn black_hole(trial: &Trial) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let load = start(trial, &server, &proxy.url());
    let dial = baseline::dial(proxy.port()).expect("a proxy that forwards");
    let began = Instant::now();
    proxy.set_black_hole(true);
    sleep(BLINK);
    proxy.set_black_hole(false);
    sleep(CALM);
    let run = load.take();
    let max_healing = 3 * Policy::DEFAULT_DEADLINE + dial;
    // Replies in flight at the start of the fault do not count as healing.
    let healed = run.healed(began + BLINK);
    let shown = healed.map_or("not healed".to_owned(), |span| {
        format!(
            "healed {} after the hole opened ({})",
            Shown(span.measured + BLINK),
            run.failure_summary()
        )
    });
    let ok = healed.is_some_and(|span| span.fair + BLINK <= max_healing);
    trial.report.row(
        shown,
        format!("≤ 3 deadlines and one dial: {}", Shown(max_healing)),
        ok,
    );

    let began = Instant::now();
    proxy.set_black_hole(true);
    sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(10)));
    let waiting = baseline::until_writable(proxy.port());
    proxy.set_black_hole(false);
    finish(trial, load, run.events, (began, waiting.answered_at()), 0);
}

/// Returns a load that has run for a while.
fn start(trial: &Trial, server: &RedisServer, url: &str) -> Load {
    let load = Load::start_with_probes(
        &trial.runtime,
        &Plan::usual(trial.limiters(2, url), usual_policy()),
    );
    load.watch(server);
    sleep(CALM);
    load
}

/// Lets the load run on for a while, and judges its calls. The bound of an excess holds over any
/// number of outages, so earlier calls count in it.
fn finish(trial: &Trial, load: Load, earlier: Vec<Event>, (began, back): (Instant, Instant), losses: u64) {
    sleep(2 * CALM);
    let mut run = load.stop();
    let out = run.failure_summary();
    trial.report.row(
        format!("{} calls: {out}", run.events.len()),
        "some calls fail",
        out != "no trouble",
    );
    trial.judge_decision_time(&run, began, back);
    trial.judge_recovery(&run, back);
    run.events.extend(earlier);
    trial.judge_extra(&run, Outages::Any, losses);
}
