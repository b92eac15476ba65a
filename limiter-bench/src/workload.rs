//! What is measured, by the names that the tables have.

mod layer;
mod local;
mod macros;
mod remote;
mod spin;
mod table;

use std::time::Duration;

use crate::contender::{Contender, Mode, Quota};
use crate::keys::Spread;
use crate::sample::Sample;
use crate::stage::{Place, Stage};

pub(crate) use remote::runtime;
pub(crate) use table::WORKLOADS;

/// So much that no call is denied, and a permit back in half a minute: what was used is remembered
/// throughout a turn, where a bucket that fills at once would be as good as absent, and be
/// forgotten.
pub(crate) const AMPLE: Quota = Quota {
    permits: 100_000_000,
    seconds: 3_000_000_000,
};

/// One row group of the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) kind: Kind,
    pub(crate) contenders: &'static [Contender],
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Tasks that wait for each decision before they ask for the next: a closed loop.
    Remote(Load),
    /// Threads that decide in process.
    Local { keys: usize, threads: usize },
    /// Requests through a layer, whose clients are told their limits or not.
    Layer { app: App, tells: bool },
    /// Calls of an annotated function.
    Macro,
}

/// What a layer stands in front of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum App {
    /// A function, which is the least that a service can be.
    Function,
    /// A router of axum's that says hello.
    Axum,
}

/// What is asked of contenders that have to be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) spread: Spread,
    pub(crate) tasks: usize,
    pub(crate) place: Place,
    pub(crate) quota: Quota,
    pub(crate) mode: Mode,
    /// Limits a decision.
    pub(crate) limits: usize,
}

impl Load {
    /// Whether calls find the quota used up.
    pub(crate) fn denies(&self) -> bool {
        self.quota.permits == 1
    }
}

/// How long a turn takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

impl Pace {
    pub(crate) const QUICK: Self = Self {
        rounds: 3,
        warm_up: Duration::from_millis(250),
        window: Duration::from_millis(800),
    };
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        warm_up: Duration::from_millis(300),
        window: Duration::from_secs(1),
    };
}

impl Workload {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }

    /// One turn of one contender.
    pub(crate) fn turn(&self, contender: Contender, stage: &Stage, pace: Pace) -> Sample {
        match &self.kind {
            Kind::Remote(load) => remote::turn(self.name, load, contender, stage, pace),
            Kind::Local { keys, threads } => local::turn(*keys, *threads, contender, pace),
            Kind::Layer { app, tells } => layer::turn(*app, *tells, contender, pace),
            Kind::Macro => macros::turn(contender, pace),
        }
    }

    /// With which contender the others are compared.
    pub(crate) fn reference(&self) -> Contender {
        match self.kind {
            Kind::Remote(_) => Contender::Incrby,
            Kind::Local { .. } | Kind::Macro => Contender::Governor,
            Kind::Layer { .. } => Contender::Bare,
        }
    }

    /// What processes may share under this workload, if that is a question here.
    pub(crate) fn shared_mode(&self) -> Option<Mode> {
        match &self.kind {
            Kind::Remote(load) => Some(load.mode),
            _ => None,
        }
    }
}
