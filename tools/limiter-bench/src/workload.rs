//! The workloads, by their names in the tables.

mod layer;
mod local;
mod macros;
mod remote;
mod spin;
mod table;

use std::time::Duration;

use crate::contender::{Contender, Mode, Quota};
use crate::environment::{Environment, Place};
use crate::keys::Distribution;
use crate::sample::Sample;

pub(crate) use remote::{runtime, turn};
pub(crate) use table::{STRICT, WORKLOADS};

/// So large that no call is denied, with one permit refilled in half a minute: the state of a key
/// is kept for the whole turn. A bucket that refills at once could be removed from memory.
pub(crate) const AMPLE: Quota = Quota {
    permits: 100_000_000,
    seconds: 3_000_000_000,
};

/// One row group of the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) kind: Kind,
    pub(crate) contenders: &'static [Contender],
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Tasks that await each decision before the next call: a closed loop.
    Remote(Load),
    /// Threads that decide in process.
    Local { keys: usize, threads: usize },
    /// Requests through a layer, with or without rate limit headers.
    Layer { app: App, with_headers: bool },
    /// Calls of an annotated function.
    Macro,
}

/// The inner service of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum App {
    /// A function, the simplest service.
    Function,
    /// An axum router with one route.
    Axum,
}

/// The load on asynchronous contenders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) distribution: Distribution,
    pub(crate) tasks: usize,
    pub(crate) place: Place,
    pub(crate) quota: Quota,
    pub(crate) mode: Mode,
    /// Limits per decision.
    pub(crate) limits: usize,
    /// Up to this number of keys, all exist before the measurement; of more keys, at least the
    /// frequent ones.
    pub(crate) filled: usize,
}

impl Load {
    /// Returns whether the quota of the workload is used up.
    pub(crate) fn denies(&self) -> bool {
        self.quota.permits == 1
    }
}

/// The length of a turn.
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

    /// Returns one turn of one contender.
    pub(crate) fn turn(&self, contender: Contender, environment: &Environment, pace: Pace) -> Sample {
        match &self.kind {
            Kind::Remote(load) => remote::turn(self.name, load, contender, environment, pace),
            Kind::Local { keys, threads } => local::turn(*keys, *threads, contender, pace),
            Kind::Layer { app, with_headers } => layer::turn(*app, *with_headers, contender, pace),
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

    /// Returns the mode in which several processes can share a limit under this workload, if it is
    /// measured.
    pub(crate) fn shared_mode(&self) -> Option<Mode> {
        match &self.kind {
            Kind::Remote(load) => Some(load.mode),
            _ => None,
        }
    }
}
