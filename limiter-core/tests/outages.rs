//! Permits that replicas admit during an outage are subtracted in Redis afterwards, so that one
//! outage costs at most the bound that README and docs/operations.md state.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Key, Limiter, ManualClock, OnStoreFailure, Origin, Policy, StoreErrorKind};
use limiter_testing::{Proxy, RedisCluster, RedisServer};
use support::{KEY, PATIENT, millis, namespace, secs};

/// Replicas of one program, behind one network.
struct Deployment {
    proxy: Proxy,
    clock: ManualClock,
    replicas: Vec<Limiter>,
    policy: Policy,
    quota: u64,
    per_second: u64,
    /// Moments in microseconds.
    admitted: Vec<u64>,
    /// The reasons for which denials were decided without Redis.
    kinds: Vec<StoreErrorKind>,
    server: RedisServer,
}

impl Deployment {
    fn new(replicas: u32, (quota, per_second): (u64, u64)) -> Self {
        let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
        let proxy = Proxy::start(server.port());
        let replica = |_| {
            let builder = Limiter::redis(proxy.url()).namespace(&namespace).clock(&clock);
            builder.replicas(replicas).build().unwrap()
        };
        let policy = Policy::token_bucket("bucket").capacity(quota).rate(per_second);
        Self {
            replicas: (0..replicas).map(replica).collect(),
            policy: policy.deadline(PATIENT).build().unwrap(),
            proxy,
            clock,
            quota,
            per_second,
            admitted: Vec::new(),
            kinds: Vec::new(),
            server,
        }
    }

    /// Calls a replica until it denies. Returns the origin of the denial.
    async fn exhaust(&mut self, replica: usize) -> Origin {
        loop {
            let decision = self.replicas[replica].check(&self.policy, KEY).await.unwrap();
            if !decision.is_allowed() {
                self.kinds
                    .extend(decision.store_error().map(|error| error.kind()));
                return decision.origin();
            }
            self.admitted.push(decision.decided_at().as_micros());
        }
    }

    async fn exhaust_all(&mut self) {
        for replica in 0..self.replicas.len() {
            self.exhaust(replica).await;
        }
    }

    /// Moves the clock on, and gives background tasks the time of a few round trips for each
    /// replica.
    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
        for _ in 0..4 {
            self.all_replicas_reply().await;
        }
    }

    /// Peeks under another policy. Returns whether all replicas receive replies from Redis.
    async fn all_replicas_reply(&self) -> bool {
        let other = Policy::token_bucket("other")
            .capacity(1)
            .rate(1)
            .deadline(PATIENT);
        let other = other.on_store_failure(OnStoreFailure::Error).build().unwrap();
        let mut answers = true;
        for limits in &self.replicas {
            answers &= limits.peek(&other, KEY).await.is_ok();
        }
        answers
    }

    /// Ends the outage, and waits until Redis replies to all replicas.
    async fn restore(&self) {
        self.proxy.refuse(false);
        let started = Instant::now();
        while !self.all_replicas_reply().await {
            assert!(started.elapsed() < secs(10), "Redis is back");
            tokio::time::sleep(millis(1)).await;
        }
    }

    /// The most that was admitted beyond the policy in any time.
    fn excess(&self) -> u64 {
        let (mut least, mut excess) = (i128::MAX, 0);
        for (before, at) in (0..).map(|number: i128| number * 1_000_000).zip(&self.admitted) {
            let spent = before - i128::from(self.per_second) * i128::from(*at);
            least = least.min(spent);
            excess = excess.max(spent + 1_000_000 - least - i128::from(self.quota) * 1_000_000);
        }
        u64::try_from(excess.div_euclid(1_000_000)).unwrap()
    }

    /// One quota, one permit per replica, and the refill during the time in which permits are
    /// unreported.
    fn bound(&self, unreported_for: Duration) -> u64 {
        let late = self.per_second * u64::try_from(unreported_for.as_millis()).unwrap();
        self.quota + self.replicas.len() as u64 + late.div_ceil(1_000)
    }
}

/// One replica uses the key before the outage, all replicas use it afterwards.
#[tokio::test]
async fn outage_costs_one_quota_after_use_by_one_replica() {
    for replicas in [2, 10] {
        let mut deployment = Deployment::new(replicas, (100, 10));
        deployment.exhaust(0).await;
        assert_eq!(deployment.admitted.len(), 100);
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        for _ in 0..110 {
            deployment.exhaust_all().await;
            deployment.clock.advance(millis(100));
        }
        deployment.restore().await;
        deployment.kinds.clear();
        for _ in 0..300 {
            deployment.exhaust_all().await;
            deployment.advance(millis(100)).await;
        }
        let (excess, bound) = (deployment.excess(), deployment.bound(millis(1_500)));
        assert!(excess <= bound, "{replicas} replicas: {excess}, at most {bound}");
        // Redis replies: the share denies only because other replicas may have unreported permits.
        let is_reconciling = |kind: &StoreErrorKind| *kind == StoreErrorKind::Reconciling;
        assert!(!deployment.kinds.is_empty());
        assert!(
            deployment.kinds.iter().all(is_reconciling),
            "{:?}",
            deployment.kinds
        );
        // Finally Redis decides; the permits of the outage are subtracted.
        let origin = deployment.exhaust(0).await;
        assert!(matches!(origin, Origin::Redis | Origin::DenyCache), "{origin:?}");
        let (admitted, allowed) = (deployment.admitted.len(), 100 + 10 * 41);
        assert!(admitted <= allowed + 1, "{admitted} of {allowed}");
        assert!(admitted + 120 >= allowed, "{admitted} of {allowed}");
    }
}

/// Redis is lost for a tenth of a second, time and again.
#[tokio::test]
async fn flapping_costs_one_quota() {
    let mut deployment = Deployment::new(1, (20, 50));
    for _ in 0..40 {
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        deployment.exhaust(0).await;
        deployment.clock.advance(millis(100));
        deployment.restore().await;
        deployment.exhaust(0).await;
        deployment.advance(millis(100)).await;
    }
    let (excess, bound) = (deployment.excess(), deployment.bound(millis(500)));
    assert!(excess <= bound, "{excess}, at most {bound}");
    let origin = deployment.exhaust(0).await;
    assert!(matches!(origin, Origin::Redis | Origin::DenyCache), "{origin:?}");
}

/// A server without memory rejects writes: a rejected report is sent again.
#[tokio::test]
async fn refused_report_is_sent_again() {
    let mut deployment = Deployment::new(1, (100, 10));
    deployment.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    deployment.exhaust(0).await;
    assert_eq!(deployment.admitted.len(), 100);
    for _ in 0..5 {
        deployment.advance(millis(100)).await;
    }
    deployment.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    for _ in 0..5 {
        deployment.advance(millis(100)).await;
    }
    deployment.exhaust(0).await;
    let admitted = deployment.admitted.len();
    assert!((100..=110).contains(&admitted), "{admitted}");
}

/// The task that reports permits ends with its runtime. A call in another runtime starts the next
/// one.
#[test]
fn permits_are_reported_after_end_of_reporting_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let mut deployment = Deployment::new(2, (100, 10));
    runtime().block_on(async {
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        assert_eq!(deployment.exhaust(0).await, Origin::LocalFallback);
    });
    runtime().block_on(async {
        deployment.restore().await;
        // The ended task counts as abandoned.
        deployment.advance(secs(6)).await;
        for _ in 0..30 {
            deployment.exhaust(0).await;
            deployment.advance(millis(100)).await;
        }
        let origin = deployment.exhaust(0).await;
        assert!(matches!(origin, Origin::Redis | Origin::DenyCache), "{origin:?}");
    });
}

/// A bucket that is refilled slowly.
fn sized(capacity: u32) -> Policy {
    let policy = Policy::token_bucket("bucket").capacity(capacity).rate("1/h");
    policy.deadline(PATIENT).build().unwrap()
}

/// The report of an outage converts the usage from before a proportional change, as a call does.
#[tokio::test]
async fn report_after_proportional_change_converts_usage() {
    let deployment = Deployment::new(1, (10, 1));
    let (small, replica) = (sized(10), &deployment.replicas[0]);
    assert!(replica.check(&small, KEY).cost(4).await.unwrap().is_allowed());
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    deployment.clock.advance(millis(1));
    let large = sized(100)
        .proportional_to(&small, deployment.clock.now())
        .unwrap();
    let decision = replica.check(&large, KEY).cost(5).await.unwrap();
    assert_eq!(
        (decision.is_allowed(), decision.origin()),
        (true, Origin::LocalFallback)
    );
    deployment.restore().await;
    // A peek under a policy without the change does not convert the usage.
    let left = async || replica.peek(&small, KEY).await.unwrap().remaining();
    let started = Instant::now();
    while left().await == 6 {
        assert!(started.elapsed() < secs(10), "the permits are reported");
        deployment.advance(millis(20)).await;
    }
    assert_eq!(replica.peek(&large, KEY).await.unwrap().remaining(), 55);
}

/// A key without a call since the change is reported in the new numbers as well.
#[tokio::test]
async fn report_of_idle_key_follows_proportional_change() {
    for (before, after, cost, expected) in [(10, 100, 4, 60), (100, 10, 50, 5)] {
        let deployment = Deployment::new(1, (10, 1));
        let (earlier, replica) = (sized(before), &deployment.replicas[0]);
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        let decision = replica.check(&earlier, KEY).cost(cost).await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        deployment.clock.advance(millis(1));
        let now = deployment.clock.now();
        let changed = sized(after).proportional_to(&earlier, now).unwrap();
        deployment.restore().await;
        let decision = replica.check(&changed, "another").await.unwrap();
        assert_eq!(decision.origin(), Origin::Redis);
        // A peek under a policy without the change converts no usage.
        let plain = sized(after);
        let left = async || u32::try_from(replica.peek(&plain, KEY).await.unwrap().remaining()).unwrap();
        let started = Instant::now();
        while left().await == after {
            assert!(started.elapsed() < secs(10), "the permits are reported");
            deployment.advance(millis(20)).await;
        }
        assert_eq!(left().await, expected, "from {before} to {after}");
        assert_eq!(
            replica.peek(&changed, KEY).await.unwrap().remaining(),
            u64::from(expected)
        );
    }
}

/// Until a scheduled change, the share of an outage is a part of the previous quota. The permits
/// that it admitted are reported in the new numbers after the change.
#[tokio::test]
async fn outage_across_scheduled_change_follows_its_policies() {
    let fixed = |limit: u32| Policy::fixed_window("fixed").limit(limit).window("30d");
    let counted = |limit: u32| Policy::counter_window("counted").limit(limit).window("30d");
    let pairs = [
        [10, 100].map(sized),
        [10, 100].map(|limit| fixed(limit).deadline(PATIENT).build().unwrap()),
        [10, 100].map(|limit| counted(limit).deadline(PATIENT).build().unwrap()),
    ];
    for [before, after] in pairs {
        outage_across_scheduled_change(&before, after).await;
    }
}

async fn outage_across_scheduled_change(before: &Policy, after: Policy) {
    let deployment = Deployment::new(1, (10, 1));
    let (hour, replica) = (secs(3_600), &deployment.replicas[0]);
    let at = deployment.clock.now().after(hour);
    let large = after.proportional_to(before, at).unwrap();
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    let check = async |cost: u32| {
        let decision = replica.check(&large, KEY).cost(cost).await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        decision.is_allowed()
    };
    assert!(!check(11).await, "more than the previous quota");
    assert!(check(4).await);
    deployment.clock.advance(hour);
    assert!(check(5).await);
    deployment.restore().await;
    let left = async || replica.peek(&large, KEY).await.unwrap().remaining();
    let started = Instant::now();
    while left().await == 100 {
        assert!(started.elapsed() < secs(10), "the permits are reported");
        deployment.advance(millis(20)).await;
    }
    // Four of ten are forty of a hundred.
    assert_eq!(left().await, 55, "{large}");
}

/// A failover to a replica that lacks the conversion of a limit is followed by another conversion.
#[tokio::test]
async fn conversion_lost_in_failover_is_repeated() {
    let deployment = Deployment::new(1, (10, 1));
    let replica = &deployment.replicas[0];
    let sized = |capacity: u32| {
        let policy = Policy::token_bucket("bucket").capacity(capacity).rate("1/h");
        let policy = policy.deadline(PATIENT).on_store_failure(OnStoreFailure::Error);
        policy.build().unwrap()
    };
    let small = sized(10);
    assert!(replica.check(&small, KEY).cost(4).await.unwrap().is_allowed());
    let name = replica.redis_key(&small, KEY).unwrap();
    deployment.server.command(&["COPY", &name, "lagging"]);
    deployment.clock.advance(millis(1));
    let large = sized(100)
        .proportional_to(&small, deployment.clock.now())
        .unwrap();
    let left = async || replica.peek(&large, KEY).await.unwrap().remaining();
    assert_eq!(left().await, 60);
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    assert!(replica.check(&large, KEY).await.is_err());
    deployment.server.command(&["COPY", "lagging", &name, "REPLACE"]);
    deployment.restore().await;
    assert_eq!(left().await, 60);
}

/// While a limit reconciles, Redis and the share count each call once.
#[tokio::test]
async fn reconciling_window_admits_its_quota() {
    let fixed = Policy::fixed_window("fixed").limit(100).window("1d");
    let sliding = Policy::sliding_window("sliding").limit(100).window("1d");
    let counted = Policy::counter_window("counted").limit(100).window("1d");
    for policy in [
        sized(100),
        fixed.deadline(PATIENT).build().unwrap(),
        sliding.deadline(PATIENT).build().unwrap(),
        counted.deadline(PATIENT).build().unwrap(),
    ] {
        let mut deployment = Deployment::new(1, (10, 1));
        deployment.policy = policy;
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        let decision = deployment.replicas[0]
            .check(&deployment.policy, KEY)
            .await
            .unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        deployment.clock.advance(secs(2));
        deployment.restore().await;
        deployment.exhaust(0).await;
        assert_eq!(deployment.admitted.len(), 99, "{}", deployment.policy);
        assert_eq!(
            deployment.kinds,
            [StoreErrorKind::Reconciling],
            "{}",
            deployment.policy
        );
    }
}

/// After an outage, Redis and the share both admit a call, and both receive its refund.
#[tokio::test]
async fn settlement_of_call_that_share_admitted_too_reaches_share() {
    let funnel = Policy::funnel("funnel").capacity(100).rate("1/h");
    let fixed = Policy::fixed_window("fixed").limit(100).window("1d");
    let sliding = Policy::sliding_window("sliding").limit(100).window("1d");
    let counted = Policy::counter_window("counted").limit(100).window("1d");
    for policy in [
        sized(100),
        funnel.deadline(PATIENT).build().unwrap(),
        fixed.aligned("utc").deadline(PATIENT).build().unwrap(),
        sliding.deadline(PATIENT).build().unwrap(),
        counted.deadline(PATIENT).build().unwrap(),
    ] {
        let deployment = Deployment::new(1, (10, 1));
        let replica = &deployment.replicas[0];
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        let decision = replica.check(&policy, KEY).await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback, "{policy}");
        deployment.clock.advance(secs(2));
        deployment.restore().await;
        for _ in 0..4 {
            let reservation = replica.reserve(&policy, KEY).cost(30).await.unwrap();
            assert_eq!(reservation.decision().origin(), Origin::Redis, "{policy}");
            reservation.settle(5).await.unwrap();
        }
        // Redis admits the call, and the permits of the outage are not reported yet.
        let denied = replica.check(&policy, KEY).cost(80).await.unwrap();
        let kind = denied.store_error().map(|error| error.kind());
        assert_eq!(
            (denied.is_allowed(), kind),
            (false, Some(StoreErrorKind::Reconciling)),
            "{policy}"
        );
    }
}

/// The refund reaches the share also after a change of the policy that keeps the usage.
#[tokio::test]
async fn settlement_after_change_reaches_share_that_admitted_the_call() {
    let deployment = Deployment::new(1, (10, 1));
    let replica = &deployment.replicas[0];
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    assert!(replica.check(&sized(100), KEY).await.unwrap().is_allowed());
    deployment.clock.advance(secs(2));
    deployment.restore().await;
    let named = replica.named("bucket");
    for capacity in 100..104 {
        replica.registry().set(sized(capacity));
        let reservation = named.reserve(KEY).cost(30).await.unwrap();
        assert_eq!(reservation.decision().origin(), Origin::Redis);
        replica.registry().set(sized(capacity + 1));
        reservation.settle(5).await.unwrap();
    }
}

/// A settlement does not refund usage of the share that was refilled since the decision.
#[tokio::test]
async fn late_settlement_creates_no_permits_of_share() {
    let deployment = Deployment::new(2, (10, 1));
    let (replica, policy) = (&deployment.replicas[0], &deployment.policy);
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    assert!(replica.check(policy, KEY).await.unwrap().is_allowed());
    deployment.clock.advance(secs(2));
    deployment.restore().await;
    // The share is five permits, refilled at one in two seconds.
    let reservation = replica.reserve(policy, KEY).cost(4).await.unwrap();
    assert_eq!(reservation.decision().origin(), Origin::Redis);
    deployment.clock.advance(secs(8));
    let others = replica.check(policy, KEY).cost(5).await.unwrap();
    assert_eq!((others.is_allowed(), others.origin()), (true, Origin::Redis));
    reservation.cancel().await.unwrap();
    let denied = replica.check(policy, KEY).await.unwrap();
    let kind = denied.store_error().map(|error| error.kind());
    assert_eq!(
        (denied.is_allowed(), kind),
        (false, Some(StoreErrorKind::Reconciling))
    );
}

#[tokio::test]
async fn shutdown_reports_and_reset_discards_outage_permits() {
    for is_reset in [false, true] {
        let mut deployment = Deployment::new(2, (100, 10));
        deployment.proxy.refuse(true);
        deployment.proxy.drop_connections();
        deployment.exhaust(0).await;
        assert_eq!(deployment.admitted.len(), 50, "the share of one of two");
        deployment.restore().await;
        let replica = &deployment.replicas[0];
        if is_reset {
            replica.reset(&deployment.policy, KEY).await.unwrap();
        }
        replica.shutdown(PATIENT).await;
        deployment.exhaust(1).await;
        let expected = if is_reset { 150 } else { 100 };
        assert_eq!(deployment.admitted.len(), expected);
    }
}

/// A report that is under way at shutdown has taken its permits from the table.
#[tokio::test]
async fn shutdown_waits_for_report_under_way() {
    let mut deployment = Deployment::new(2, (100, 10));
    deployment.proxy.refuse(true);
    deployment.proxy.drop_connections();
    deployment.exhaust(0).await;
    assert_eq!(deployment.admitted.len(), 50, "the share of one of two");
    deployment.restore().await;
    // Loads the script of the report.
    deployment.replicas[0].ready().await.unwrap();
    let server = &deployment.server;
    let stat = |section: &str, name: &str| -> u64 {
        let info = server.command(&["INFO", section]).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |line| line.trim().split(',').next().unwrap().parse().unwrap())
    };
    let scripts = || stat("commandstats", "cmdstat_evalsha:calls=");
    let started = Instant::now();
    let until = async |holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(started.elapsed() < secs(20));
            tokio::task::yield_now().await;
        }
    };
    // The task reads the state of the limit, and then charges the permits, each in 400 ms.
    deployment.proxy.set_delay(millis(200));
    let before = scripts();
    deployment.clock.advance(millis(100));
    until(&|| scripts() > before).await;
    server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    until(&|| stat("clients", "blocked_clients:") > 0).await;
    let replica = deployment.replicas[0].clone();
    let mut shutdown = tokio::spawn(async move { replica.shutdown(PATIENT).await });
    let early = tokio::time::timeout(millis(300), &mut shutdown).await;
    assert!(early.is_err(), "the report has no reply");
    server.command(&["CLIENT", "UNPAUSE"]);
    shutdown.await.unwrap();
    deployment.proxy.set_delay(millis(0));
    deployment.exhaust(1).await;
    assert_eq!(deployment.admitted.len(), 100);
}

/// Many limits of a dead node do not delay the reports to another node.
#[tokio::test]
async fn dead_node_does_not_delay_reports_to_others() {
    let cluster = RedisCluster::builder()
        .arg("cluster-require-full-coverage", "no")
        .arg("cluster-node-timeout", "60000")
        .start();
    let namespace = namespace();
    let build = || {
        let builder = Limiter::redis_cluster(cluster.urls()).namespace(&namespace);
        builder.replicas(1).build().unwrap()
    };
    let policy = Policy::token_bucket("bucket").capacity(10).rate("1/h");
    let policy = policy.deadline(millis(500)).build().unwrap();
    let limits = build();
    limits.ready().await.unwrap();
    let groups = [0, 1].map(|node| {
        let mut groups = (0..).map(|group: u32| group.to_string());
        let group = groups.find(|group| cluster.owner_of(cluster.slot_of(group)) == node);
        group.unwrap()
    });
    let [restarted, dead] = &groups;
    for node in [0, 1] {
        cluster.node(node).kill();
    }
    // More than the reports that are under way at one time, and less than those of a round.
    let of_dead = (0..900_u32).map(|key| (key, dead));
    for (key, group) in of_dead.chain([(0, restarted)]) {
        let key = Key::from(key).in_group(group);
        let decision = limits.check(&policy, key).await.unwrap();
        let expected = (true, Origin::LocalFallback);
        assert_eq!((decision.is_allowed(), decision.origin()), expected);
    }
    cluster.node(0).restart();
    let (other, key) = (build(), Key::from(0_u32).in_group(restarted));
    let remaining = async || {
        let peeked = other.peek(&policy, &key).await;
        peeked.map_or(10, |peeked| peeked.remaining())
    };
    let reported = async {
        while remaining().await != 9 {
            tokio::time::sleep(millis(10)).await;
        }
    };
    let reported = tokio::time::timeout(secs(20), reported).await;
    assert!(reported.is_ok(), "the permits are not reported");
}
