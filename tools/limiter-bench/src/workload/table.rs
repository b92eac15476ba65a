//! The workloads.

use std::time::Duration;

use super::{App, Kind, Load, Workload};
use crate::contender::Contender::{
    self, AxumGovernor, Bare, ByHand, Governor, Incrby, Ours, RedisCell, ScriptBb8, ScriptMultiplexed,
    TowerGovernor, TrypemaHybrid, TrypemaLocal, TrypemaRedis,
};
use crate::contender::{Mode, Quota};
use crate::environment::Place;
use crate::keys::Distribution;

const REDIS: &[Contender] = &[
    Ours,
    Incrby,
    RedisCell,
    ScriptMultiplexed,
    ScriptBb8,
    TrypemaRedis,
    TrypemaHybrid,
];
/// Where the others would need a set-up of their own.
const PLAIN: &[Contender] = &[Ours, Incrby, ScriptMultiplexed];
const POOLED: &[Contender] = &[Ours, Incrby, ScriptMultiplexed, ScriptBb8];
const LOCAL: &[Contender] = &[Ours, Governor, TrypemaLocal];

/// So large that no call is denied, and 10 permits per second, which is slightly less than the rate
/// of calls on one of 10,000 keys: the state of a key is kept for the whole turn, and its usage
/// grows slowly.
const STEADY: Quota = Quota {
    permits: 100_000_000,
    seconds: 10_000_000,
};
/// One call uses the quota, and further calls are denied for the rest of the day.
const SPENT: Quota = Quota {
    permits: 1,
    seconds: 86_400,
};
const WINDOW: Quota = Quota {
    permits: 100,
    seconds: 1,
};

/// 10,000 keys, 64 tasks, one bucket per decision.
pub(crate) const STRICT: Load = Load {
    distribution: Distribution::Even(10_000),
    tasks: 64,
    place: Place::Server,
    quota: STEADY,
    mode: Mode::Bucket,
    limits: 1,
    filled: 10_000,
};
const HOT: Load = Load {
    distribution: Distribution::Even(1),
    ..STRICT
};

pub(crate) const WORKLOADS: &[Workload] = &[
    redis(
        "single-1",
        "10,000 keys, one task",
        REDIS,
        Load { tasks: 1, ..STRICT },
    ),
    redis("strict-10k-64", "10,000 keys, 64 tasks", REDIS, STRICT),
    redis(
        "strict-10k-512",
        "10,000 keys, 512 tasks",
        REDIS,
        Load { tasks: 512, ..STRICT },
    ),
    redis("hot-64", "one key, 64 tasks", REDIS, HOT),
    redis("hot-512", "one key, 512 tasks", REDIS, Load { tasks: 512, ..HOT }),
    redis(
        "hot-denied-64",
        "one key that is denied, 64 tasks",
        REDIS,
        Load { quota: SPENT, ..HOT },
    ),
    redis(
        "zipf-64",
        "100,000 keys, some more popular, 64 tasks",
        REDIS,
        Load {
            distribution: Distribution::Zipf(100_000),
            ..STRICT
        },
    ),
    redis(
        "window-10k-64",
        "exact windows, 10,000 keys, 64 tasks",
        PLAIN,
        Load {
            quota: WINDOW,
            mode: Mode::Window,
            ..STRICT
        },
    ),
    redis(
        "multi-10k-64",
        "three limits a decision, 10,000 keys, 64 tasks",
        PLAIN,
        Load { limits: 3, ..STRICT },
    ),
    redis(
        "lease-hot-64",
        "one key on a lease, 64 tasks",
        REDIS,
        Load {
            mode: Mode::Leased,
            ..HOT
        },
    ),
    redis(
        "cluster-10k-64",
        "three nodes, 10,000 keys, 64 tasks",
        PLAIN,
        Load {
            place: Place::Cluster,
            ..STRICT
        },
    ),
    local("local-1", "in process, one key, one thread", 1, 1),
    local("local-1-2t", "in process, one key, two threads", 1, 2),
    local("local-10k", "in process, 10,000 keys, one thread", 10_000, 1),
    local("local-10k-2t", "in process, 10,000 keys, two threads", 10_000, 2),
    local("local-1m", "in process, 1,000,000 keys, one thread", 1_000_000, 1),
    local(
        "local-1m-2t",
        "in process, 1,000,000 keys, two threads",
        1_000_000,
        2,
    ),
    layer(
        "layer-local",
        "requests through a layer to a function, in process",
        App::Function,
        false,
    ),
    layer(
        "layer-axum",
        "requests through a layer to axum's router, in process",
        App::Axum,
        false,
    ),
    layer(
        "layer-axum-headers",
        "the same, with headers on allowed responses",
        App::Axum,
        true,
    ),
    Workload {
        name: "macro-local",
        description: "calls of an annotated function, in process, one thread",
        kind: Kind::Macro,
        contenders: &[Ours, ByHand, Governor],
    },
    redis(
        "strict-10k-512-1ms",
        "10,000 keys, 512 tasks, 1 ms in either direction",
        POOLED,
        delayed(1),
    ),
    redis(
        "strict-10k-512-5ms",
        "10,000 keys, 512 tasks, 5 ms in either direction",
        POOLED,
        delayed(5),
    ),
];

const fn redis(
    name: &'static str,
    description: &'static str,
    contenders: &'static [Contender],
    load: Load,
) -> Workload {
    let kind = Kind::Remote(load);
    Workload {
        name,
        description,
        kind,
        contenders,
    }
}

const fn local(name: &'static str, description: &'static str, keys: usize, threads: usize) -> Workload {
    let kind = Kind::Local { keys, threads };
    Workload {
        name,
        description,
        kind,
        contenders: LOCAL,
    }
}

const fn layer(name: &'static str, description: &'static str, app: App, with_headers: bool) -> Workload {
    let kind = Kind::Layer { app, with_headers };
    Workload {
        name,
        description,
        kind,
        contenders: &[Ours, TowerGovernor, AxumGovernor, Bare],
    }
}

const fn delayed(millis: u64) -> Load {
    Load {
        tasks: 512,
        place: Place::Delayed(Duration::from_millis(millis)),
        ..STRICT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_workload_has_its_reference() {
        for (place, workload) in WORKLOADS.iter().enumerate() {
            assert!(WORKLOADS[..place].iter().all(|other| other.name != workload.name));
            assert!(
                workload.contenders.contains(&workload.reference()),
                "{}",
                workload.name
            );
            assert_eq!(workload.contenders.first(), Some(&Ours), "{}", workload.name);
        }
    }
}
