//! Usage of the fleet in Redis: counts and denied keys.
#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limiter_core::lease::HolderDecisions;
use limiter_core::usage::{DeniedKey, UsageCell, UsageCursor, UsageReporting};
use limiter_core::{Limiter, ManualClock, OnStoreFailure, Origin, Policy, RedisBuilder, Timestamp};
use limiter_testing::{RedisCluster, RedisServer};
use support::{PATIENT, namespace};

const KEYS_OF_A_SKETCH: usize = 20;

fn bucket(name: &str) -> Policy {
    let policy = Policy::token_bucket(name)
        .capacity(1)
        .rate("1/h")
        .deadline(PATIENT);
    policy.on_store_failure(OnStoreFailure::Error).build().unwrap()
}

/// Limiters of one namespace, each as in a process of its own.
struct Fleet {
    base: RedisBuilder,
    clock: ManualClock,
}

impl Fleet {
    /// Waits until this number of allowed calls is reported.
    async fn reports_allowed(&self, number: u64) {
        let allowed = async || -> u64 { self.cells().await.iter().map(|(_, cell)| cell.allowed).sum() };
        until(async || (allowed().await == number).then_some(())).await;
    }

    fn new(base: RedisBuilder) -> Self {
        let clock = ManualClock::new();
        let base = base.namespace(namespace()).clock(&clock);
        Self { base, clock }
    }

    fn process(&self, app: &str, usage: UsageReporting) -> Limiter {
        self.base.clone().app(app).usage(usage).build().unwrap()
    }

    /// All cells, by the start of their minute in minutes after that of the clock.
    async fn cells(&self) -> Vec<(i64, UsageCell)> {
        let usage = self.base.clone().build().unwrap().fleet_usage().unwrap();
        let (mut cursor, mut cells) = (UsageCursor::default(), Vec::new());
        let minute = |micros: u64| i64::try_from(micros / 60_000_000).unwrap();
        loop {
            let minutes = usage.changed_minutes(&mut cursor).await.unwrap();
            if minutes.is_empty() {
                return cells;
            }
            for of in minutes {
                let after = minute(of.start.as_micros()) - minute(self.clock.now().as_micros());
                cells.extend(of.cells.into_iter().map(|cell| (after, cell)));
            }
        }
    }

    async fn denied_keys(&self) -> Vec<DeniedKey> {
        let usage = self.base.clone().build().unwrap().fleet_usage().unwrap();
        let now = self.clock.now();
        let from = Timestamp::from_micros(now.as_micros() - 3_600_000_000);
        let minutes = usage.denied_keys(from, now).await.unwrap();
        minutes.into_iter().flat_map(|of| of.keys).collect()
    }
}

fn shown(cell: &UsageCell) -> (&str, &str, [u64; 4]) {
    let counts = [cell.allowed, cell.denied, cell.would_deny, cell.failed];
    (&cell.policy, cell.app.as_deref().unwrap_or("-"), counts)
}

/// Yields until the task of a limiter has reported.
async fn until<T>(mut reported: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = reported().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, found).await.unwrap()
}

async fn processes_are_summed(base: RedisBuilder) {
    let fleet = Fleet::new(base);
    let (search, mail) = (bucket("search"), bucket("mail: \n"));
    for (app, calls) in [("shop", 3), ("shop", 4), ("", 2)] {
        let limits = fleet.process(app, UsageReporting::Counts);
        for _ in 0..calls {
            let _ = limits.check(&search, app).await.unwrap();
            let _ = limits.peek(&search, app).await.unwrap();
        }
        let _ = limits.check(&mail, "one").cost(2).await.unwrap_err();
        limits.shutdown(PATIENT).await;
    }
    let silent = fleet.process("shop", UsageReporting::Off);
    let _ = silent.check(&search, "shop").await.unwrap();
    silent.shutdown(PATIENT).await;
    let cells = fleet.cells().await;
    let cells: Vec<_> = cells
        .iter()
        .map(|(minute, cell)| (*minute, shown(cell)))
        .collect();
    let expected = [
        (0, ("mail: \n", "-", [0, 0, 0, 1])),
        (0, ("mail: \n", "shop", [0, 0, 0, 2])),
        (0, ("search", "-", [1, 1, 0, 0])),
        (0, ("search", "shop", [1, 6, 0, 0])),
    ];
    assert_eq!(cells, expected);
    assert_eq!(fleet.denied_keys().await, [], "keys are reported on request only");
}

#[tokio::test]
async fn processes_are_summed_on_standalone_server() {
    processes_are_summed(Limiter::redis(RedisServer::shared().url())).await;
}

#[tokio::test]
async fn processes_are_summed_on_cluster() {
    processes_are_summed(Limiter::redis_cluster(RedisCluster::shared().urls())).await;
}

#[tokio::test]
async fn task_reports_by_minute_within_interval() {
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::Counts);
    let search = bucket("search");
    let _ = limits.check(&search, "a").await.unwrap();
    fleet.clock.advance(Duration::from_secs(7));
    until(async || (fleet.cells().await.len() == 1).then_some(())).await;
    let _ = limits.check(&search, "a").await.unwrap();
    fleet.clock.advance(Duration::from_secs(60));
    // The second call was made in the first minute, which has ended.
    let cells = until(async || Some(fleet.cells().await).filter(|cells| cells[0].1.denied == 1)).await;
    assert_eq!((cells.len(), cells[0].0, cells[0].1.allowed), (1, -1, 1));
    let _ = limits.check(&search, "a").await.unwrap();
    fleet.clock.advance(Duration::from_secs(7));
    let cells = until(async || Some(fleet.cells().await).filter(|cells| cells.len() == 2)).await;
    assert_eq!((cells[1].0, cells[1].1.denied), (0, 1));
}

/// A reader with a cursor reads a changed minute again, and only that one.
#[tokio::test]
async fn cursor_returns_changed_minutes() {
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let search = bucket("search");
    let report = async || {
        let limits = fleet.process("shop", UsageReporting::Counts);
        let _ = limits.check(&search, "a").await.unwrap();
        limits.shutdown(PATIENT).await;
    };
    for _ in 0..10 {
        report().await;
        fleet.clock.advance(Duration::from_secs(60));
    }
    let usage = fleet.base.clone().build().unwrap().fleet_usage().unwrap();
    let mut cursor = UsageCursor::default();
    let mut starts = BTreeSet::new();
    loop {
        let minutes = usage.changed_minutes(&mut cursor).await.unwrap();
        if minutes.is_empty() {
            break;
        }
        for minute in minutes {
            assert!(starts.insert(minute.start), "{minute:?} was returned before");
        }
    }
    assert_eq!(starts.len(), 10);
    report().await;
    let minutes = usage.changed_minutes(&mut cursor).await.unwrap();
    assert_eq!((minutes.len(), minutes[0].cells[0].denied), (1, 1));
    // The reports have left the time that Redis stores.
    fleet.clock.advance(Duration::from_secs(3 * 3_600));
    assert_eq!(
        usage.changed_minutes(&mut UsageCursor::default()).await.unwrap(),
        []
    );
}

#[tokio::test]
async fn outage_delays_reports_and_drops_old_ones() {
    let server = RedisServer::start();
    let fleet = Fleet::new(Limiter::redis(server.url()));
    let policy = |name: &str, answer| {
        let policy = Policy::token_bucket(name)
            .capacity(9)
            .rate("1/h")
            .deadline(PATIENT);
        policy.on_store_failure(answer).build().unwrap()
    };
    let limits = fleet.process("shop", UsageReporting::Counts);
    let answers = [
        ("closed", OnStoreFailure::FailClosed, [0, 1, 0, 0]),
        ("error", OnStoreFailure::Error, [0, 0, 0, 1]),
        ("local", OnStoreFailure::Local, [1, 0, 0, 0]),
        ("open", OnStoreFailure::FailOpen, [1, 0, 0, 0]),
    ];
    limits
        .check(&policy("before", OnStoreFailure::Error), "a")
        .await
        .unwrap()
        .require()
        .unwrap();
    server.kill();
    for (name, answer, _) in answers {
        let _ = limits.check(&policy(name, answer), "a").await;
    }
    // The minute ends during the outage, and the task moves its counts to the queue.
    for _ in 0..20 {
        fleet.clock.advance(Duration::from_secs(10));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    server.restart();
    limits.ready().await.unwrap();
    limits.shutdown(PATIENT).await;
    let cells = fleet.cells().await;
    let counts: BTreeMap<_, _> = cells
        .iter()
        .map(|(minute, cell)| (cell.policy.as_str(), (*minute, shown(cell).2)))
        .collect();
    for (name, _, expected) in answers {
        let (minute, counts) = counts[name];
        assert_eq!(counts, expected, "{name}");
        assert!(minute < 0, "the calls were made before the end of the outage");
    }
    assert_eq!(counts["before"].1, [1, 0, 0, 0]);
}

/// A server that fails over or has no memory rejects reports for the moment.
#[tokio::test]
async fn temporary_rejection_delays_reports() {
    let server = RedisServer::start();
    let set_memory = |bytes| server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    let demote = |to: [&str; 2]| server.command(&["REPLICAOF", to[0], to[1]]);
    type Change<'a> = &'a dyn Fn() -> limiter_testing::RespValue;
    let rejections: [(Change<'_>, Change<'_>); 2] = [
        (&|| set_memory("1"), &|| set_memory("0")),
        (&|| demote(["127.0.0.1", "1"]), &|| demote(["NO", "ONE"])),
    ];
    for (reject, accept) in rejections {
        let fleet = Fleet::new(Limiter::redis(server.url()));
        let limits = fleet.process("shop", UsageReporting::Counts);
        let _ = limits.check(&bucket("search"), "a").await.unwrap();
        reject();
        for _ in 0..20 {
            fleet.clock.advance(Duration::from_secs(10));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        accept();
        limits.ready().await.unwrap();
        limits.shutdown(PATIENT).await;
        let cells = fleet.cells().await;
        assert_eq!(cells.iter().map(|(_, cell)| cell.allowed).sum::<u64>(), 1);
    }
}

#[tokio::test]
async fn stored_minutes_expire() {
    let server = RedisServer::start();
    let fleet = Fleet::new(Limiter::redis(server.url()));
    let limits = fleet.process("shop", UsageReporting::CountsAndDeniedKeys);
    for _ in 0..2 {
        let _ = limits.check(&bucket("search"), "a").await.unwrap();
    }
    limits.shutdown(PATIENT).await;
    let keys = server.command(&["KEYS", "*{usage}*"]);
    assert_eq!(keys.items().len(), 2);
    for key in keys.items() {
        let key = key.text();
        let stored = if key.contains("denied") { 24 } else { 2 } * 3_600_000;
        let ttl = server.command(&["PTTL", &key]).integer();
        assert!(ttl <= stored && ttl > stored - 600_000, "{key}: {ttl} ms");
    }
}

/// Names that a program computes from input do not create cells without bound.
#[tokio::test]
async fn number_of_policies_is_bounded() {
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::Counts);
    let off = |number: u32| {
        let policy = Policy::token_bucket(format!("p{number}")).capacity(1).rate(1);
        policy
            .enforcement(limiter_core::Enforcement::Off)
            .build()
            .unwrap()
    };
    for number in 0..5_000 {
        let _ = limits.check(&off(number), "a").await.unwrap();
    }
    limits.shutdown(PATIENT).await;
    assert_eq!(fleet.cells().await.len(), 4_096);
}

#[tokio::test]
async fn denied_keys_have_origin_and_times() {
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let search = bucket("search");
    let long = "x".repeat(500);
    let first = fleet.clock.now();
    for app in ["shop", "web"] {
        let limits = fleet.process(app, UsageReporting::CountsAndDeniedKeys);
        for key in ["user:1", "user:1", "user:1", &long] {
            let _ = limits.check(&search, key).await.unwrap();
        }
        let both = [(&search, "user:1"), (&bucket("mail"), "user:1")];
        let _ = limits.check_all(both).await.unwrap();
        limits.shutdown(PATIENT).await;
        fleet.clock.advance(Duration::from_secs(1));
    }
    let keys = fleet.denied_keys().await;
    let shown = |key: &DeniedKey| (key.app.clone().unwrap(), key.key.len(), key.denied, key.error);
    let shown: Vec<_> = keys.iter().map(shown).collect();
    let expected = [
        ("web".to_owned(), 6, 4, 0),
        ("shop".to_owned(), 6, 3, 0),
        ("web".to_owned(), 33, 1, 0),
    ];
    assert_eq!(shown, expected);
    assert!(
        keys.iter()
            .all(|key| key.policy == "search" && key.revision.is_none())
    );
    assert_eq!(
        (keys[1].key.as_str(), keys[1].first, keys[1].last),
        ("user:1", first, first)
    );
    assert_eq!(
        keys[0].origin,
        Some(Origin::Redis),
        "several limits are not in the deny cache"
    );
}

/// Calls that a holder of a lease decided are in the usage, and charge nothing.
#[tokio::test]
async fn decisions_of_holders_are_counted() {
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::CountsAndDeniedKeys);
    let search = bucket("search");
    let decisions = HolderDecisions::by(Origin::Lease).allowed(40).denied(30);
    limits.count_decisions(&search, "user:1", decisions.would_deny(7));
    limits.count_decisions(&search, "user:2", HolderDecisions::by(Origin::Block).denied(2));
    assert_eq!(limits.peek(&search, "user:1").await.unwrap().remaining(), 1);
    limits.shutdown(PATIENT).await;
    let cells = fleet.cells().await;
    assert_eq!(shown(&cells[0].1), ("search", "shop", [40, 32, 7, 0]));
    let keys = fleet.denied_keys().await;
    let keys: Vec<_> = keys
        .iter()
        .map(|key| (key.key.as_str(), key.denied, key.origin))
        .collect();
    let expected = [
        ("user:1", 30, Some(Origin::Lease)),
        ("user:2", 2, Some(Origin::Block)),
    ];
    assert_eq!(keys, expected);
}

/// The bounds hold for sketches of several processes that Redis has merged.
#[tokio::test]
async fn merged_sketches_state_their_error() {
    let search = bucket("search");
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
        let mut truth: BTreeMap<String, u64> = BTreeMap::new();
        let distinct = random.u32(1..200);
        for _ in 0..random.u32(1..5) {
            let limits = fleet.process("shop", UsageReporting::CountsAndDeniedKeys);
            for _ in 0..random.u32(0..400) {
                let key = format!("{}", random.u32(0..distinct) * random.u32(0..distinct) / distinct);
                if !limits.check(&search, &key).await.unwrap().is_allowed() {
                    *truth.entry(key).or_default() += 1;
                }
            }
            limits.shutdown(PATIENT).await;
        }
        let keys = fleet.denied_keys().await;
        let least = keys.iter().map(|key| key.denied).min().unwrap_or(0);
        assert_eq!(keys.len(), truth.len().min(KEYS_OF_A_SKETCH), "seed {seed}");
        for key in keys {
            let denials = truth.remove(&key.key).unwrap_or(0);
            assert!(
                key.denied - key.error <= denials && denials <= key.denied,
                "seed {seed}: {denials} denials of {key:?}"
            );
        }
        for (key, denials) in truth {
            assert!(
                denials <= least,
                "seed {seed}: {denials} denials of {key}, which is absent"
            );
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// The runtime of the first task exists, and nothing drives it.
#[test]
fn reports_continue_in_another_runtime() {
    let (first, second) = (runtime(), runtime());
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::Counts);
    let search = bucket("search");
    first.block_on(async { limits.check(&search, "a").await.unwrap().require().unwrap() });
    second.block_on(async {
        fleet.clock.advance(Duration::from_secs(121));
        limits.check(&search, "b").await.unwrap().require().unwrap();
        // The next task counts from its start.
        fleet.clock.advance(Duration::from_secs(59));
        fleet.reports_allowed(2).await;
    });
}

#[test]
fn reports_of_permits_continue_in_another_runtime() {
    let (first, second) = (runtime(), runtime());
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::Counts);
    let export = Policy::concurrency("export").max(5).build().unwrap();
    let _first = first.block_on(async { limits.acquire_concurrency(&export, "a").await.unwrap() });
    second.block_on(async {
        fleet.clock.advance(Duration::from_secs(121));
        let _second = limits.acquire_concurrency(&export, "b").await.unwrap();
        fleet.clock.advance(Duration::from_secs(59));
        fleet.reports_allowed(2).await;
    });
}

#[test]
fn shutdown_reports_counts_of_another_runtime() {
    let (first, second) = (runtime(), runtime());
    let fleet = Fleet::new(Limiter::redis(RedisServer::shared().url()));
    let limits = fleet.process("shop", UsageReporting::Counts);
    let search = bucket("search");
    first.block_on(async { limits.check(&search, "a").await.unwrap().require().unwrap() });
    second.block_on(async {
        limits.shutdown(Duration::from_secs(3)).await;
        assert_eq!(fleet.cells().await.len(), 1);
    });
}
