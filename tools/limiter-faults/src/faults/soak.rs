//! Random faults for a long time: nothing may leak, and every fault must pass.

mod random_fault;

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_testing::{Proxy, RedisServer};

use crate::ledger::{Extra, Ledger, Outages};
use crate::load::{Load, Plan};
use crate::process::ProcessUsage;
use crate::run::Run;
use crate::trial::{HEALTHY_WITHIN, QUOTA, Shown, Trial, usual_policy};
use random_fault::{RANDOM_FAULTS, RandomFault};

/// Long enough for clients to use a recovered store again, and for the state of a fault to
/// disappear.
const CALM: Duration = Duration::from_millis(2_500);
const LIMITERS: usize = 2;
/// Rounds before memory, tasks and sockets count as steady: one for each kind of fault.
const WARM_UP: usize = RANDOM_FAULTS.len();

pub(crate) fn soak(trial: &Trial) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let plan = Plan::usual(trial.limiters(LIMITERS, &proxy.url()), usual_policy());
    let load = Load::start_with_probes(&trial.runtime, &plan);
    let (began, lasts) = (
        Instant::now(),
        trial.pick(Duration::from_secs(60), Duration::from_secs(600)),
    );
    let mut random = fastrand::Rng::with_seed(trial.seed);
    let mut tally = SoakResults::default();
    let mut all = Ledger::new(QUOTA);
    while began.elapsed() < lasts || tally.rounds < WARM_UP + 3 {
        let random_fault = match RANDOM_FAULTS.get(tally.rounds) {
            Some(random_fault) => *random_fault,
            None => random.choice(RANDOM_FAULTS).unwrap_or(RandomFault::Kill),
        };
        load.watch(&server);
        let waiting = random_fault.apply(&server, &proxy, random.u64(100..800));
        let back = waiting.answered_at();
        sleep(CALM);
        let run = load.take();
        run.add_to(&mut all);
        tally.enter(random_fault, &run, back, ProcessUsage::now(&trial.runtime));
    }
    let run = load.stop();
    trial.judge_hung(&run);
    run.add_to(&mut all);
    tally.judge(trial, all.extra());
}

/// The results of all rounds.
#[derive(Debug, Default)]
struct SoakResults {
    rounds: usize,
    /// The number of times that the server has lost its data.
    losses: u64,
    slowest: Option<(Duration, RandomFault)>,
    unhealed: Vec<(usize, RandomFault)>,
    excessive: Vec<(usize, RandomFault, Extra)>,
    usage: Vec<ProcessUsage>,
}

impl SoakResults {
    fn enter(&mut self, random_fault: RandomFault, run: &Run, back: Instant, usage: ProcessUsage) {
        self.rounds += 1;
        self.losses += random_fault.losses();
        self.usage.push(usage);
        match run.healed(back) {
            Some(span) if span.fair <= HEALTHY_WITHIN => {
                if self.slowest.is_none_or(|(slowest, _)| span.measured > slowest) {
                    self.slowest = Some((span.measured, random_fault));
                }
            }
            _ => self.unhealed.push((self.rounds, random_fault)),
        }
        let extra = run.extra(QUOTA);
        if extra.worst > QUOTA.bound(Outages::Any, random_fault.losses(), run.limiters()) {
            self.excessive.push((self.rounds, random_fault, extra));
        }
    }

    fn judge(&self, trial: &Trial, extra: Extra) {
        let figure = match (self.unhealed.first(), self.slowest) {
            (Some((round, random_fault)), _) => {
                let count = self.unhealed.len();
                format!(
                    "{count} of {} rounds not healed in time, the first: round {round}, {random_fault:?}",
                    self.rounds
                )
            }
            (None, Some((slowest, random_fault))) => {
                format!(
                    "{} rounds, healthy {} after the store at most ({random_fault:?})",
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
            Some((round, random_fault, extra)) => {
                format!(
                    "round {round}, {random_fault:?}: {} extra under one key",
                    extra.worst
                )
            }
            None => format!(
                "{} extra under one key in all rounds, {} under all",
                extra.worst, extra.total
            ),
        };
        let maximum = QUOTA.bound(Outages::Any, self.losses, LIMITERS);
        let ok = self.excessive.is_empty() && extra.worst <= maximum;
        trial.report.row(
            figure,
            format!("≤ {maximum} in all, with {} losses of data", self.losses),
            ok,
        );
        self.judge_usage(trial);
    }

    /// Compares the usual of the first rounds after the warm-up with the usual of the last.
    fn judge_usage(&self, trial: &Trial) {
        let rounds = self.usage.get(WARM_UP..).unwrap_or_default();
        let third = rounds.len().div_ceil(3);
        let first = rounds.get(..third).unwrap_or_default();
        let last = rounds.get(rounds.len() - third..).unwrap_or_default();
        let memory = |usage: &ProcessUsage| usage.allocated_kib;
        let (before, after) = (median(first, memory), median(last, memory));
        let maximum = before + before / 10 + 256;
        trial.report.row(
            format!("allocated {before} KiB, then {after} KiB"),
            format!("flat: ≤ {maximum} KiB"),
            after <= maximum,
        );
        let memory = |usage: &ProcessUsage| usage.resident_kib;
        let (before, after) = (median(first, memory), median(last, memory));
        trial.report.row(
            format!("resident {before} KiB, then {after} KiB"),
            "stated: it includes free memory of the allocator",
            true,
        );
        for (resource, number) in [
            ("tasks", (|usage| usage.tasks as u64) as fn(&ProcessUsage) -> u64),
            ("sockets", |usage| usage.sockets as u64),
        ] {
            let (before, after) = (median(first, number), median(last, number));
            let maximum = before + 3;
            trial.report.row(
                format!("{resource} {before}, then {after}"),
                format!("flat: ≤ {maximum}"),
                after <= maximum,
            );
        }
    }
}

fn median(usage: &[ProcessUsage], number: impl Fn(&ProcessUsage) -> u64) -> u64 {
    let mut numbers: Vec<u64> = usage.iter().map(number).collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}
