//! Expiry of keys, and writes.

use std::time::Duration;

use limiter_core::lease::LeaseReport;
use limiter_core::{Key, LimitRequest, Limiter, Policy, Timestamp};
use limiter_testing::RedisServer;

use crate::support::{KEY, PATIENT, bucket, funnel, millis, namespace, one_of_each, only, secs, window};
use crate::{changes, expiry, get, limiter, name, names, time};

/// A key never expires before the time of its reply, and at most a second or a sixteenth of the
/// lifetime after it: the server counts whole milliseconds.
#[tokio::test]
async fn keys_expire_when_state_equals_absence() {
    let server = RedisServer::shared();
    for policy in [
        bucket("p", 5, 1),
        funnel("p", 5, "7/3s"),
        window("p", 5, "90s"),
        bucket("long", 5, "1/30d"),
        window("odd", 300, "1234567us"),
    ] {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        for cost in [1, 2, 5, 2, 1] {
            let decision = limits.check(&policy, KEY).cost(cost).await.unwrap();
            let name = name(server, &namespace);
            let (_, expires) = expiry(server, &name);
            let meant = only(&decision).expires_after();
            let slack = (meant / 16).max(Duration::from_secs(1)) + millis(50);
            assert!(meant >= decision.retry_after().unwrap_or_default(), "{policy}");
            let meant = decision.decided_at().after(meant).as_micros();
            let expires = expires.unwrap_or_else(|| unreachable!("{policy}: a key without a TTL"));
            assert!(
                expires >= meant,
                "{policy}: expires {} µs too early",
                meant - expires
            );
            assert!(
                u128::from(expires - meant) < slack.as_micros(),
                "{policy}: expires {} µs too late",
                expires - meant
            );
        }
    }
}

/// The leases of one key: of a process, and of a named holder.
struct KeyLeases<'a> {
    server: &'a RedisServer,
    limits: &'a Limiter,
    key: &'a str,
    /// The process that leases tokens.
    process: Option<Limiter>,
}

impl KeyLeases<'_> {
    /// Leases tokens, or spends one and returns the others.
    async fn lease_or_return(&mut self, policy: &Policy, cost: u32) {
        let is_held = self.process.is_some();
        let process = self.process.take().unwrap_or_else(|| limiter(self.server, "ns"));
        let _ = process.check(policy, self.key).cost(cost).await.unwrap();
        if is_held {
            process.shutdown(PATIENT).await;
        } else {
            self.process = Some(process);
        }
    }

    /// Reports a part of the holder's lease as spent, and leases again.
    async fn renew(&self, policy: &Policy, random: &mut fastrand::Rng) {
        let call = || {
            self.limits
                .token_lease(policy, self.key, "holder")
                .lifetime(secs(120))
        };
        let lease = call().read().await.unwrap();
        let report = LeaseReport::default().spent(random.u64(0..lease.permits().whole() + 3));
        let report = match random.u32(..3) {
            0 => report,
            1 => report.wanted(random.u32(1..60)),
            _ => report
                .held(random.u32(1..20))
                .steady_millionths(random.u32(1..500_000)),
        };
        call().renew(&lease, report).await.unwrap();
    }
}

/// Charges of one and of several limits, refunds, forced charges, conversions, leases and their
/// reports, and two versions of a policy, while time passes.
#[tokio::test]
async fn levels_expire_within_sixteenth_of_lifetime_after_absence() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let server = RedisServer::builder().movable_clock().start();
    let limits = limiter(&server, "ns");
    let other = bucket("other", 1_000_000, 1_000);
    let mut ahead = 0;
    for round in 0..10 {
        let is_only_version = round > 5;
        let (shape, prefix) = match round % 2 {
            0 => (Policy::token_bucket("p"), "tb"),
            _ => (Policy::funnel("p"), "fn"),
        };
        let shape = shape.deadline(PATIENT);
        let first = shape.clone().capacity(1_000).rate("1/10s");
        let leased = first.clone().lease("5m").build().unwrap();
        let first = first.build().unwrap();
        let second = shape.capacity(900).rate("1/7s").build().unwrap();
        let second = if is_only_version { first.clone() } else { second };
        let versions = [first, second];
        let key = format!("key{round}");
        let name = format!("ns|{prefix}|p|{{{key}}}");
        let mut leases = KeyLeases {
            server: &server,
            limits: &limits,
            key: &key,
            process: None,
        };
        let (mut previous, mut set_at) = (0, 0);
        for turn in 0..120 {
            let policy = &versions[usize::from(random.u32(..10) == 0)];
            match random.u32(..14) {
                0 => limits.refund(policy, &*key).cost(random.u32(1..4)).await.unwrap(),
                1 => limits
                    .charge(policy, &*key)
                    .cost(random.u32(1..30))
                    .await
                    .unwrap(),
                2 if turn % 30 > 20 && !is_only_version => {
                    // Converts the stored usage by a compare-and-set.
                    let converted = versions[1]
                        .clone()
                        .proportional_to(&versions[0], Timestamp::from_micros(time(&server)));
                    let _ = limits.check(&converted.unwrap(), &*key).await.unwrap();
                }
                2 | 3 => {
                    let both = [(policy, &*key), (&other, &*key)];
                    let _ = limits.check_all(both).await.unwrap();
                }
                4 | 5 => leases.lease_or_return(&leased, random.u32(1..5)).await,
                6 | 7 => leases.renew(policy, &mut random).await,
                _ => {
                    let _ = limits.check(policy, &*key).cost(random.u32(1..9)).await.unwrap();
                }
            }
            let idle = limits.peek(policy, &*key).await.unwrap();
            // Under the only version of a policy, a state without usage equals absence.
            let absent_after = match is_only_version {
                true => only(&idle).reset_after(),
                false => only(&idle).expires_after(),
            };
            let absent_at = idle.decided_at().after(absent_after).as_micros();
            if server.command(&["EXISTS", &name]).integer() == 0 {
                assert_eq!(only(&idle).expires_after(), Duration::ZERO, "{seed}: {turn}");
                continue;
            }
            let (now, expires) = expiry(&server, &name);
            let expires = expires.unwrap();
            // The remaining milliseconds are rounded down, and read after the time.
            let (early, late) = (
                absent_at.saturating_sub(expires),
                expires.saturating_sub(absent_at),
            );
            assert!(early < 2_000, "{seed}: {round} {turn}, {early} µs too early");
            if expires.abs_diff(previous) > 2_000 {
                (previous, set_at) = (expires, now);
            }
            let slack = (absent_at.saturating_sub(set_at) / 16).max(1_000_000);
            assert!(
                late < slack + 50_000,
                "{seed}: {round} {turn}, {late} of {slack} µs too late"
            );
            ahead += random.i64(0..40_000_000) * i64::from(random.u32(..3) == 0);
            server.shift_clock(ahead);
        }
    }
}

/// The value of a counter window has the length of a level.
#[tokio::test]
async fn converted_counter_window_expires_with_its_usage() {
    let server = RedisServer::shared();
    let namespace = namespace();
    let limits = limiter(server, &namespace);
    let [before, after] = [10, 20].map(|limit| {
        let window = Policy::counter_window("p").limit(limit).window("1h");
        window.deadline(Duration::from_secs(30)).build().unwrap()
    });
    assert!(limits.check(&before, KEY).await.unwrap().is_allowed());
    let converted = after
        .proportional_to(&before, Timestamp::from_micros(time(server)))
        .unwrap();
    let decision = limits.check(&converted, KEY).await.unwrap();
    let (_, expires) = expiry(server, &name(server, &format!("{namespace}|cw")));
    let meant = decision
        .decided_at()
        .after(only(&decision).expires_after())
        .as_micros();
    let late = expires.unwrap() - meant;
    assert!(late < 1_050_000, "{late} µs too late");
}

/// A charge moves the end of the usage by the time of one permit, ten seconds.
#[tokio::test]
async fn slow_refills_keep_ttl_at_most_charges() {
    let server = RedisServer::start();
    let limits = limiter(&server, "ns");
    let [one, two] = ["one", "two"].map(|name| bucket(name, 10_000, "1/10s"));
    for turn in 0..300 {
        let decision = limits.check(&one, KEY).await.unwrap();
        assert!(decision.is_allowed(), "{turn}");
        let both =
            [(&two, KEY), (&one, "another")].map(|(policy, key)| (policy, Key::from(key).in_group("g")));
        assert!(limits.check_all(both).await.unwrap().is_allowed(), "{turn}");
    }
    let calls = |command: &str| {
        let statistics = server.command(&["INFO", "commandstats"]).text();
        let start = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(&start));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().unwrap())
    };
    let (sets, kept) = (calls("set"), calls("setrange"));
    assert_eq!(sets + kept, 900);
    assert!(sets < 300, "{sets} of 900 charges set the time to live");
}

/// The policies of a rollout agree on the later of their moments, and so does a ring that grows.
#[tokio::test]
async fn changed_policy_extends_key_lifetime() {
    let server = RedisServer::shared();
    for (quick, slow) in [
        (bucket("p", 5, 100), bucket("p", 7, "1/m")),
        (funnel("p", 5, 100), funnel("p", 7, "1/m")),
        (window("p", 5, "50ms"), window("p", 200, "1m")),
    ] {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        assert!(limits.check(&slow, KEY).await.unwrap().is_allowed());
        let name = name(server, &namespace);
        let (_, first) = expiry(server, &name);
        assert!(limits.check(&quick, KEY).await.unwrap().is_allowed());
        let (_, second) = expiry(server, &name);
        assert!(
            second.unwrap() + 2_000 >= first.unwrap(),
            "{slow}, {first:?}, {second:?}"
        );
    }
}

#[tokio::test]
async fn idle_key_expires() {
    let server = RedisServer::shared();
    for policy in [bucket("p", 1, 50), funnel("p", 1, 50), window("p", 1, "20ms")] {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        let decision = limits.check(&policy, KEY).await.unwrap();
        let due = decision.decided_at().after(millis(20)).as_micros();
        while !names(server, &namespace).is_empty() {
            assert!(
                time(server) < due + 10_000_000,
                "{policy}: the key does not expire"
            );
        }
        assert!(time(server) >= due, "{policy}: the key expired too early");
    }
}

/// A key whose TTL is set by a second command could lose it; the calls here race with the expiry of
/// keys.
#[tokio::test]
async fn expiring_key_is_never_persistent() {
    let server = RedisServer::shared();
    let namespace = namespace();
    let limits = limiter(server, &namespace);
    let policies = [
        bucket("p", 2, 1_000),
        funnel("p", 2, 1_000),
        window("p", 2, "1ms"),
    ];
    let mut admitted = 0;
    for _ in 0..300 {
        for policy in &policies {
            admitted += u32::from(limits.check(policy, KEY).await.unwrap().is_allowed());
        }
    }
    assert!(admitted > 6, "keys have expired and were stored again");
    for name in names(server, &namespace) {
        let ttl = server.command(&["PTTL", &name]).integer();
        assert_ne!(ttl, -1, "{name} has no TTL");
    }
}

#[tokio::test]
async fn server_clock_dates_decisions() {
    let server = RedisServer::shared();
    let limits = limiter(server, &namespace());
    for policy in one_of_each() {
        let before = time(server);
        let decided = limits.check(&policy, KEY).await.unwrap().decided_at().as_micros();
        let after = time(server);
        assert!((before..=after).contains(&decided), "{before} {decided} {after}");
    }
}

#[tokio::test]
async fn reads_and_denials_write_nothing() {
    let server = RedisServer::start();
    let limits = limiter(&server, "ns");
    for policy in [bucket("p", 5, "1/h"), funnel("p", 5, "1/h"), window("p", 5, "1h")] {
        let before = changes(&server);
        assert!(limits.peek(&policy, KEY).await.unwrap().is_allowed());
        assert!(limits.check(&policy, KEY).cost(0).await.unwrap().is_allowed());
        assert_eq!(
            (changes(&server), names(&server, "ns")),
            (before, vec![]),
            "{policy}"
        );

        assert!(limits.check(&policy, KEY).cost(3).await.unwrap().is_allowed());
        let name = name(&server, "ns");
        let stands = || {
            let (_, expires) = expiry(&server, &name);
            (
                changes(&server),
                server.command(&["DUMP", &name]),
                expires.unwrap() / 10_000,
            )
        };
        let (changed, dump, expires) = stands();
        for cost in [0, 1, 2, 3, 5] {
            assert_eq!(
                limits.peek(&policy, KEY).cost(cost).await.unwrap().is_allowed(),
                cost < 3
            );
        }
        assert!(limits.check(&policy, KEY).cost(0).await.unwrap().is_allowed());
        assert!(!limits.check(&policy, KEY).cost(3).await.unwrap().is_allowed());
        let full = bucket("full", 1, "1/h");
        let requests = [
            LimitRequest::new(&policy, KEY).cost(4),
            LimitRequest::new(&full, KEY),
        ];
        assert!(!limits.check_all(requests).await.unwrap().is_allowed());
        let (changed_now, dump_now, expires_now) = stands();
        assert_eq!((changed_now, dump_now), (changed, dump), "{policy}");
        assert!(expires_now.abs_diff(expires) <= 1, "{policy}");
        limits.reset(&policy, KEY).await.unwrap();
    }
}

#[tokio::test]
async fn state_is_small() {
    let server = RedisServer::shared();
    for policy in [bucket("p", 5, "1/h"), funnel("p", 5, "1/h")] {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        for _ in 0..3 {
            assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
            assert_eq!(get(server, &name(server, &namespace)).len(), 42, "{policy}");
        }
    }
    // A thousand permits one by one, and at once.
    for costs in [vec![1; 1_000], vec![1_000], vec![999, 1]] {
        let namespace = namespace();
        let (limits, policy) = (limiter(server, &namespace), window("p", 1_000, "1h"));
        for cost in &costs {
            assert!(limits.check(&policy, KEY).cost(*cost).await.unwrap().is_allowed());
        }
        let name = name(server, &namespace);
        assert_eq!(get(server, &name).len(), 53 + 8 * 1_000);
        let bytes = server.command(&["MEMORY", "USAGE", &name]).integer();
        // Redis allocates up to twice the length of a growing string; the name and the header take
        // the rest.
        assert!(bytes <= 16 * 1_000 + 256, "{} calls: {bytes} bytes", costs.len());
    }
}
