//! Everything at random, for a long time: nothing may grow, and every fault must pass.

mod blow;

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_testing::{Proxy, RedisServer};

use crate::ledger::{Extra, Ledger, Outages};
use crate::load::{Load, Plan};
use crate::process::Held;
use crate::run::Run;
use crate::trial::{HEALTHY_WITHIN, QUOTA, Shown, Trial, usual_policy};
use blow::{BLOWS, Blow};

/// Long enough for a store that is back to be used again, and for what a fault has left behind to
/// be gone.
const CALM: Duration = Duration::from_millis(2_500);
const LIMITERS: usize = 2;
/// Rounds until memory, tasks and sockets are taken for what they usually are: each kind of blow
/// once.
const WARM_UP: usize = BLOWS.len();

pub(crate) fn soak(trial: &Trial) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let plan = Plan::usual(trial.limiters(LIMITERS, &proxy.url()), usual_policy());
    let load = Load::start(&trial.runtime, &plan);
    let (began, lasts) = (
        Instant::now(),
        trial.pick(Duration::from_secs(60), Duration::from_secs(600)),
    );
    let mut random = fastrand::Rng::with_seed(trial.seed);
    let mut tally = Tally::default();
    let mut all = Ledger::new(QUOTA);
    while began.elapsed() < lasts || tally.rounds < WARM_UP + 3 {
        let blow = match BLOWS.get(tally.rounds) {
            Some(blow) => *blow,
            None => random.choice(BLOWS).unwrap_or(Blow::Kill),
        };
        load.watch(&server);
        let waiting = blow.strike(&server, &proxy, random.u64(100..800));
        let back = waiting.answered_at();
        sleep(CALM);
        let run = load.take();
        run.enter_into(&mut all);
        tally.enter(blow, &run, back, Held::now(&trial.runtime));
    }
    let run = load.stop();
    trial.judge_hung(&run);
    run.enter_into(&mut all);
    tally.judge(trial, all.extra());
}

/// What the rounds have shown.
#[derive(Debug, Default)]
struct Tally {
    rounds: usize,
    /// The number of times that the server has lost its data.
    losses: u64,
    slowest: Option<(Duration, Blow)>,
    unhealed: Vec<(usize, Blow)>,
    excessive: Vec<(usize, Blow, Extra)>,
    held: Vec<Held>,
}

impl Tally {
    fn enter(&mut self, blow: Blow, run: &Run, back: Instant, held: Held) {
        self.rounds += 1;
        self.losses += blow.losses();
        self.held.push(held);
        match run.healed(back) {
            Some(span) if span.fair <= HEALTHY_WITHIN => {
                if self.slowest.is_none_or(|(slowest, _)| span.measured > slowest) {
                    self.slowest = Some((span.measured, blow));
                }
            }
            _ => self.unhealed.push((self.rounds, blow)),
        }
        let extra = run.extra(QUOTA);
        if extra.worst > QUOTA.bound(Outages::Any, blow.losses(), run.limiters()) {
            self.excessive.push((self.rounds, blow, extra));
        }
    }

    fn judge(&self, trial: &Trial, extra: Extra) {
        let figure = match (self.unhealed.first(), self.slowest) {
            (Some((round, blow)), _) => {
                let count = self.unhealed.len();
                format!(
                    "{count} of {} rounds not healed in time, the first: round {round}, {blow:?}",
                    self.rounds
                )
            }
            (None, Some((slowest, blow))) => {
                format!(
                    "{} rounds, healthy {} after the store at most ({blow:?})",
                    self.rounds,
                    Shown(slowest)
                )
            }
            (None, None) => "no rounds".to_owned(),
        };
        let ok = self.unhealed.is_empty() && self.slowest.is_some();
        trial.report.row(
            figure,
            format!("≤ {}, seed {}", Shown(HEALTHY_WITHIN), trial.seed),
            ok,
        );

        let figure = match self.excessive.first() {
            Some((round, blow, extra)) => {
                format!("round {round}, {blow:?}: {} extra under one key", extra.worst)
            }
            None => format!(
                "{} extra under one key in all rounds, {} under all",
                extra.worst, extra.total
            ),
        };
        let most = QUOTA.bound(Outages::Any, self.losses, LIMITERS);
        let ok = self.excessive.is_empty() && extra.worst <= most;
        trial.report.row(
            figure,
            format!("≤ {most} in all, with {} losses of data", self.losses),
            ok,
        );
        self.judge_held(trial);
    }

    /// Compares the usual of the first rounds after the warm-up with the usual of the last.
    fn judge_held(&self, trial: &Trial) {
        let rounds = self.held.get(WARM_UP..).unwrap_or_default();
        let third = rounds.len().div_ceil(3);
        let first = rounds.get(..third).unwrap_or_default();
        let last = rounds.get(rounds.len() - third..).unwrap_or_default();
        let memory = |held: &Held| held.resident_kib;
        let (before, after) = (median(first, memory), median(last, memory));
        let most = before + before / 10 + 2_048;
        trial.report.row(
            format!("memory {before} KiB, then {after} KiB"),
            format!("flat: ≤ {most} KiB"),
            after <= most,
        );
        for (what, number) in [
            ("tasks", (|held| held.tasks as u64) as fn(&Held) -> u64),
            ("sockets", |held| held.sockets as u64),
        ] {
            let (before, after) = (median(first, number), median(last, number));
            let most = before + 3;
            trial.report.row(
                format!("{what} {before}, then {after}"),
                format!("flat: ≤ {most}"),
                after <= most,
            );
        }
    }
}

fn median(held: &[Held], number: impl Fn(&Held) -> u64) -> u64 {
    let mut numbers: Vec<u64> = held.iter().map(number).collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}
