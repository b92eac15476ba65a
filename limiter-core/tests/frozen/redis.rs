//! Keys, stored bytes, script arguments and replies, under an injected clock.

use std::fmt::Write as _;
use std::time::Duration;

use limiter_core::lease::{LeaseRenewal, LeaseReport};
use limiter_core::penalty::Penalty;
use limiter_core::{Key, LimitRequest, Limiter, ManualClock, Policy, RedisBuilder};
use limiter_testing::RedisServer;

use super::assert_frozen;
use super::recording_relay::{Tap, hex};

/// A loaded machine must not run into a policy's deadline.
pub(super) const PATIENT: Duration = Duration::from_secs(20);

/// A server of one scenario with everything that passes over its connections.
pub(super) struct Scenario {
    server: RedisServer,
    tap: Tap,
    clock: ManualClock,
    pub(super) limits: Limiter,
    pub(super) page: String,
    printed: usize,
}

impl Scenario {
    pub(super) fn new(configure: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        let server = RedisServer::start();
        let tap = Tap::start(server.port());
        let clock = ManualClock::new();
        let builder = Limiter::redis(tap.url())
            .namespace("app")
            .clock(&clock)
            .connections(1);
        let limits = configure(builder.deny_cache(Duration::ZERO)).build().unwrap();
        Self {
            server,
            tap,
            clock,
            limits,
            page: String::new(),
            printed: 0,
        }
    }

    fn without_heartbeat() -> Self {
        Self::new(|builder| builder.replicas(1))
    }

    /// Appends the script calls since the last step, then all keys with their values.
    pub(super) fn step(&mut self, title: &str) {
        writeln!(self.page, "== {title}").unwrap();
        let calls = self.tap.script_calls();
        for call in &calls[self.printed..] {
            let keys: Vec<_> = call.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
            writeln!(self.page, "call {}", keys.join(" ")).unwrap();
            writeln!(self.page, "  argument {}", hex(&call.argument)).unwrap();
            writeln!(self.page, "  reply    {}", call.reply).unwrap();
        }
        self.printed = calls.len();
        self.values();
    }

    fn values(&mut self) {
        let keys = self.server.command(&["KEYS", "*"]);
        let mut keys: Vec<String> = keys.items().iter().map(|key| key.text()).collect();
        keys.sort();
        for key in keys {
            let expires = self.server.command(&["PTTL", &key]).integer() > 0;
            let kind = self.server.command(&["TYPE", &key]).text();
            let value = match &*kind {
                "string" => hex(self.server.command(&["GET", &key]).bytes()),
                "zset" => {
                    let members = self.server.command(&["ZRANGE", &key, "0", "-1"]);
                    let mut members: Vec<_> =
                        members.items().iter().map(|member| hex(member.bytes())).collect();
                    members.sort();
                    members.join(" | ")
                }
                "hash" => {
                    let fields = self.server.command(&["HGETALL", &key]);
                    let fields = fields.items().chunks(2);
                    let mut fields: Vec<_> = fields
                        .map(|pair| format!("{} = {}", hex(pair[0].bytes()), hex(pair[1].bytes())))
                        .collect();
                    fields.sort();
                    fields.join(" | ")
                }
                other => other.to_owned(),
            };
            let ttl = if expires { "expires" } else { "persists" };
            writeln!(self.page, "{kind} {key} ({ttl})\n  {value}").unwrap();
        }
    }
}

/// The pages of several runs as one, with `..` for each byte in which they differ: process ids are
/// random.
pub(super) fn masked(pages: &[String]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let all: Vec<Vec<&str>> = pages.iter().map(|page| page.lines().collect()).collect();
    for (number, first) in all[0].iter().enumerate() {
        assert!(
            all.iter().all(|page| page.len() == all[0].len()),
            "runs differ in length: {pages:#?}"
        );
        let mut line = first.as_bytes().to_vec();
        for page in &all[1..] {
            let other = page[number].as_bytes();
            assert_eq!(line.len(), other.len(), "{first}\n{}", page[number]);
            for at in 0..line.len() {
                if line[at] != b'.' && first.as_bytes()[at] != other[at] {
                    // A byte is two digits; groups of four bytes take nine columns.
                    line[at] = b'.';
                }
            }
        }
        lines.push(whole_bytes(&line));
    }
    lines.join("\n") + "\n"
}

/// Masks both digits of a byte if one of them is masked.
fn whole_bytes(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).into_owned();
    let word = |word: &str| -> String {
        if !word.contains('.')
            || word.len() % 2 == 1
            || !word.bytes().all(|byte| byte == b'.' || byte.is_ascii_hexdigit())
        {
            return word.to_owned();
        }
        let pair = |pair: &[u8]| {
            if pair.contains(&b'.') {
                "..".to_owned()
            } else {
                String::from_utf8_lossy(pair).into_owned()
            }
        };
        word.as_bytes().chunks(2).map(pair).collect()
    };
    let (indent, rest) = text.split_at(text.len() - text.trim_start().len());
    format!(
        "{indent}{}",
        rest.split(' ').map(word).collect::<Vec<_>>().join(" ")
    )
}

#[tokio::test]
async fn rate_limit_layouts_are_frozen() {
    let minute = "1m";
    let policies = [
        Policy::token_bucket("token bucket")
            .capacity(20)
            .rate("10/s")
            .deadline(PATIENT)
            .build(),
        Policy::funnel("funnel")
            .capacity(2.5)
            .rate("100/min")
            .deadline(PATIENT)
            .build(),
        Policy::funnel("paced")
            .capacity(10)
            .rate("2/s")
            .paced()
            .deadline(PATIENT)
            .build(),
        Policy::sliding_window("sliding")
            .limit(5)
            .window(minute)
            .deadline(PATIENT)
            .build(),
        Policy::counter_window("counter")
            .limit(5)
            .window(minute)
            .deadline(PATIENT)
            .build(),
        Policy::fixed_window("fixed")
            .limit(5)
            .window(minute)
            .deadline(PATIENT)
            .build(),
        Policy::fixed_window("aligned")
            .limit(5)
            .window("month")
            .aligned("+02:00")
            .deadline(PATIENT)
            .build(),
    ];
    let mut page = String::new();
    for policy in policies.map(Result::unwrap) {
        let mut scenario = Scenario::without_heartbeat();
        let limits = scenario.limits.clone();
        let name = policy.name();
        let _ = limits.check(&policy, "user:1").await.unwrap();
        scenario.step(&format!("{name}: check"));
        scenario.clock.advance(Duration::from_millis(1_500));
        let _ = limits.check(&policy, "user:1").cost(2).await.unwrap();
        scenario.step(&format!("{name}: check of cost 2"));
        let _ = limits.peek(&policy, "user:1").await.unwrap();
        scenario.step(&format!("{name}: peek"));
        limits.refund(&policy, "user:1").await.unwrap();
        scenario.step(&format!("{name}: refund"));
        limits.charge(&policy, "user:1").cost(4).await.unwrap();
        scenario.step(&format!("{name}: charge of cost 4"));
        let denied = limits.check(&policy, "user:1").cost(2).await.unwrap();
        scenario.step(&format!("{name}: check, allowed: {}", denied.is_allowed()));
        limits.reset(&policy, "user:1").await.unwrap();
        scenario.step(&format!("{name}: reset"));
        page += &scenario.page;
    }
    assert_frozen("redis_rates.txt", &page);
}

#[tokio::test]
async fn keys_and_several_limits_are_frozen() {
    let mut scenario = Scenario::without_heartbeat();
    let limits = scenario.limits.clone();
    let bucket = Policy::token_bucket("a|b c")
        .capacity(2)
        .rate("1/s")
        .group("g{1}")
        .deadline(PATIENT)
        .build()
        .unwrap();
    let window = Policy::sliding_window("w")
        .limit(5)
        .window("1m")
        .group("g{1}")
        .deadline(PATIENT)
        .build()
        .unwrap();
    let key = Key::from("user:").part("x:y|z").part("é");
    let requests = [
        LimitRequest::new(&bucket, &key),
        LimitRequest::new(&window, &key).cost(2),
    ];
    let _ = limits.check_all(requests).await.unwrap();
    scenario.step("two limits of one group");
    let grouped = Key::from("k").in_group("tenant 3");
    let _ = limits.check(&window, &grouped).await.unwrap();
    scenario.step("group of the key");

    let penalty = Penalty::after(1, "1m").block_for("10m").unwrap();
    let login = Policy::sliding_window("login")
        .limit(1)
        .window("1m")
        .penalty(penalty)
        .deadline(PATIENT)
        .build()
        .unwrap();
    for call in 1..=4 {
        let _ = limits.check(&login, "ann").await.unwrap();
        scenario.step(&format!("penalty after one denial: call {call}"));
    }
    assert_frozen("redis_keys.txt", &scenario.page);
}

#[tokio::test]
async fn registry_layout_is_frozen() {
    let mut scenario = Scenario::without_heartbeat();
    let registry = scenario.limits.redis_registry().unwrap();
    assert!(registry.read().await.unwrap().is_none());
    scenario.step("read without a text");
    let text = "[policy.p]\nalgorithm = \"token_bucket\"\ncapacity = 1\nrate = 1\n";
    let revision = registry.publish(text, 0).await.unwrap();
    scenario.step("publish");
    assert_eq!(registry.read().await.unwrap().unwrap().0, revision);
    scenario.step("read");
    assert_frozen("redis_registry.txt", &scenario.page);
}

/// Random ids differ in one byte of 256 runs by chance; in this number of runs each of their bytes
/// differs at least once.
pub(super) const RUNS: usize = 6;

#[tokio::test]
async fn concurrency_layout_is_frozen() {
    let mut pages = Vec::new();
    for _ in 0..RUNS {
        let mut scenario = Scenario::without_heartbeat();
        let limits = scenario.limits.clone();
        let policy = Policy::concurrency("export")
            .max(3)
            .lease("1h")
            .deadline(PATIENT)
            .build()
            .unwrap();
        let first = limits.acquire_concurrency(&policy, "ann").await.unwrap();
        scenario.step("acquire");
        let second = limits.acquire_concurrency(&policy, "ann").cost(2).await.unwrap();
        scenario.step("acquire of cost 2");
        assert!(limits.acquire_concurrency(&policy, "ann").await.is_err());
        scenario.step("acquire, denied");
        let _ = limits.peek(&policy, "ann").await.unwrap();
        scenario.step("peek");
        first.release().await.unwrap();
        second.release().await.unwrap();
        scenario.step("both released");
        pages.push(scenario.page);
    }
    assert_frozen("redis_concurrency.txt", &masked(&pages));
}

#[tokio::test]
async fn detached_layouts_are_frozen() {
    let mut pages = Vec::new();
    for _ in 0..RUNS {
        let mut scenario = Scenario::without_heartbeat();
        let limits = scenario.limits.clone();
        let policy = Policy::concurrency("export").max(3).lease("1h").deadline(PATIENT);
        let policy = policy.build().unwrap();
        let permit = limits
            .acquire_concurrency(&policy, "ann")
            .detached()
            .await
            .unwrap();
        scenario.step("acquire a detached permit");
        let _ = limits.renew_permit(&policy, "ann", permit.id()).await.unwrap();
        scenario.step("renew");
        let _ = limits.release_permit(&policy, "ann", permit.id()).await.unwrap();
        scenario.step("release");
        let _ = limits.release_permit(&policy, "ann", permit.id()).await.unwrap();
        scenario.step("release again");
        let tokens = Policy::token_bucket("tokens")
            .capacity(10)
            .rate("1/h")
            .deadline(PATIENT);
        let tokens = tokens.build().unwrap();
        let reservation = limits.reserve(&tokens, "ann").cost(5).await.unwrap();
        let reservation = reservation.detach(Duration::from_secs(60)).await.unwrap();
        scenario.step("detached reservation");
        for title in ["settle", "settle again"] {
            let used = [LimitRequest::new(&tokens, "ann").cost(2)];
            let _ = limits.settle_reservation(reservation.id(), used).await.unwrap();
            scenario.step(title);
        }
        pages.push(scenario.page);
    }
    assert_frozen("redis_detached.txt", &masked(&pages));
}

#[tokio::test]
async fn heartbeat_layout_is_frozen() {
    let mut pages = Vec::new();
    let policy = Policy::token_bucket("p")
        .capacity(2)
        .rate("1/s")
        .deadline(PATIENT)
        .build()
        .unwrap();
    for _ in 0..RUNS {
        let mut scenario = Scenario::new(|builder| builder);
        let limits = scenario.limits.clone();
        let _ = limits.check(&policy, "ann").await.unwrap();
        let is_heartbeat = |key: &[u8]| !key.ends_with(b"{ann}");
        while !scenario
            .tap
            .script_calls()
            .iter()
            .any(|call| call.keys.iter().any(|key| is_heartbeat(key)))
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for call in scenario
            .tap
            .script_calls()
            .iter()
            .filter(|call| is_heartbeat(&call.keys[0]))
            .take(1)
        {
            writeln!(scenario.page, "call {}", String::from_utf8_lossy(&call.keys[0])).unwrap();
            writeln!(scenario.page, "  argument {}", hex(&call.argument)).unwrap();
            writeln!(scenario.page, "  reply    {}", call.reply).unwrap();
        }
        scenario.values();
        pages.push(scenario.page);
    }
    assert_frozen("redis_heartbeat.txt", &masked(&pages));
}

#[tokio::test]
async fn token_lease_layout_is_frozen() {
    let mut pages = Vec::new();
    let policy = Policy::token_bucket("p")
        .capacity(1_000)
        .rate("100/s")
        .lease("1s")
        .deadline(PATIENT)
        .build()
        .unwrap();
    for _ in 0..RUNS {
        let mut scenario = Scenario::without_heartbeat();
        let limits = scenario.limits.clone();
        for call in 1..=3 {
            let _ = limits.check(&policy, "ann").await.unwrap();
            scenario.step(&format!("check {call}"));
        }
        limits.shutdown(Duration::from_secs(5)).await;
        scenario.step("shutdown returns the lease");
        pages.push(scenario.page);
    }
    assert_frozen("redis_token_lease.txt", &masked(&pages));
}

#[tokio::test]
async fn holder_lease_layout_is_frozen() {
    let mut scenario = Scenario::without_heartbeat();
    let limits = scenario.limits.clone();
    let bucket = Policy::token_bucket("p").capacity(1_000).rate("100/s");
    let bucket = bucket.deadline(PATIENT).build().unwrap();
    let call = |holder: &'static str| {
        limits
            .token_lease(&bucket, "ann", holder)
            .lifetime(Duration::from_secs(5))
    };
    let read = call("node-1").read().await.unwrap();
    scenario.step("read");
    let report = LeaseReport::default().wanted(100_u64);
    let renewal = call("node-1").renew(&read, report).await.unwrap();
    let LeaseRenewal::Renewed(granted) = renewal else {
        unreachable!("no other process renewed");
    };
    scenario.step("grant");
    let report = LeaseReport::default().spent(40_u64).wanted(50_u64);
    let _ = call("node-1").renew(&granted, report).await.unwrap();
    scenario.step("renew");
    let read = call("node-2").read().await.unwrap();
    let report = LeaseReport::default().wanted(10_u64);
    let _ = call("node-2").renew(&read, report).await.unwrap();
    scenario.step("second holder");
    let third = call("node-3").read().await.unwrap();
    let report = LeaseReport::default().held(20_u64).steady_millionths(250_000);
    let _ = call("node-3").renew(&third, report).await.unwrap();
    scenario.step("holder with a steady rate");
    scenario.clock.advance(Duration::from_secs(6));
    let report = LeaseReport::default().spent(7_u64).wanted(1_u64);
    let _ = call("node-2").renew(&read, report).await.unwrap();
    scenario.step("superseded renewal after the end of all leases");
    assert_frozen("redis_holder_lease.txt", &scenario.page);
}
