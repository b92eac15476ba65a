//! Lost replies: the calls were executed, and their results do not arrive.

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_testing::{Proxy, RedisServer};

use crate::audit::{audit, policy};
use crate::load::{Load, Plan};
use crate::trial::{Trial, namespace};

const CUTS: usize = 100;
const EVERY: Duration = Duration::from_millis(20);
const GIVE_UP: Duration = Duration::from_secs(40);

/// A hundred replies are cut, every second one in its middle. Each call has its own key, so that
/// the store shows how often it was charged.
pub(crate) fn cut(trial: &Trial) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let hasty = policy(limiter_core::Policy::DEFAULT_DEADLINE);
    let plan = Plan::usual(trial.limiters(2, &proxy.url()), hasty).with_key_per_call();
    let load = Load::start(&trial.runtime, &plan);
    let began = Instant::now();
    while proxy.replies_cut() < CUTS && began.elapsed() < GIVE_UP {
        let before = proxy.replies_cut();
        if before.is_multiple_of(2) {
            proxy.cut_replies(1)
        } else {
            proxy.tear_replies(1)
        }
        while proxy.replies_cut() == before && began.elapsed() < GIVE_UP {
            sleep(Duration::from_millis(1));
        }
        sleep(EVERY);
    }
    let run = load.stop();
    let limits = limiter_core::Limiter::redis(server.url())
        .namespace(namespace())
        .build();
    let patient = policy(Duration::from_secs(10));
    let audit = audit(trial, &limits.expect("a valid limiter"), &patient, &run);

    let cut = proxy.replies_cut();
    let figure = format!(
        "{cut} replies cut, {} charged calls without an answer",
        audit.unanswered
    );
    trial.report.row(
        figure,
        format!("≥ {CUTS}, some"),
        cut >= CUTS && audit.unanswered > 0,
    );
    let figure = format!("{} of {} calls charged twice", audit.excess, run.events.len());
    trial.report.row(figure, "0", audit.excess == 0);
    trial.report.row(
        format!("{} admitted calls not charged", audit.lost),
        "0",
        audit.lost == 0,
    );
    trial.judge_hung(&run);
}
