//! Commands and memory that the decision script uses.

use limiter_core::{LimitRequest, Limiter, Policy, StoreErrorKind};
use limiter_testing::RedisServer;
use tokio::task::JoinSet;

use crate::support::{KEY, PATIENT, bucket, namespace, only, window};
use crate::{get, kind_of, limiter, names, set};

/// Value of a statistic of the server.
fn stat(server: &RedisServer, section: &str, beginning: &str) -> u64 {
    let text = server.command(&["INFO", section]).text();
    let value = text.lines().find_map(|line| line.strip_prefix(beginning));
    let digits = value.and_then(|value| value.split(|c: char| !c.is_ascii_digit()).next());
    digits.map_or(0, |digits| digits.parse().unwrap())
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    stat(server, "commandstats", &format!("cmdstat_{command}:calls="))
}

fn three() -> [Policy; 3] {
    [
        bucket("burst", 50, 1),
        Policy::fixed_window("hour")
            .limit(60)
            .window("1h")
            .deadline(PATIENT)
            .build()
            .unwrap(),
        Policy::counter_window("day")
            .limit(70)
            .window("1d")
            .deadline(PATIENT)
            .build()
            .unwrap(),
    ]
}

/// Decides once for each of these keys, at the same time.
async fn decide_for(limits: &Limiter, policies: &[Policy; 3], keys: std::ops::Range<u32>) {
    let mut decisions = JoinSet::new();
    for key in keys {
        let (limits, policies) = (limits.clone(), policies.clone());
        decisions.spawn(async move {
            let requests = policies.iter().map(|policy| LimitRequest::new(policy, key));
            limits.check_all(requests).await.unwrap().is_allowed()
        });
    }
    assert!(decisions.join_all().await.into_iter().all(|allowed| allowed));
}

#[tokio::test]
async fn batch_of_several_limits_reads_all_values_with_one_command() {
    let server = RedisServer::start();
    let limits = limiter(&server, &namespace());
    limits.ready().await.unwrap();
    let policies = three();
    decide_for(&limits, &policies, 0..64).await;
    let count = |command: &str| calls(&server, command);
    let before = [count("evalsha"), count("mget"), count("setrange"), count("get")];
    decide_for(&limits, &policies, 0..64).await;
    let scripts = count("evalsha") - before[0];
    assert!((2..16).contains(&scripts), "{scripts}");
    assert_eq!(count("mget") - before[1], scripts);
    assert_eq!(count("get") - before[3], 0);
    assert!(count("setrange") - before[2] >= 2 * 64);
}

#[tokio::test]
async fn foreign_value_among_several_limits_charges_none() {
    let server = RedisServer::shared();
    let policies = three();
    for foreign in 0..3 {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        let requests = || policies.iter().map(|policy| LimitRequest::new(policy, KEY));
        assert!(limits.check_all(requests()).await.unwrap().is_allowed());
        let stored = names(server, &namespace);
        assert_eq!(stored.len(), 3);
        for (index, name) in stored.iter().enumerate() {
            server.command(&["DEL", name]);
            if index == foreign {
                server.command(&["LPUSH", name, "value"]);
            }
        }
        assert_eq!(
            kind_of(limits.check_all(requests()).await),
            StoreErrorKind::WrongType
        );
        assert_eq!(names(server, &namespace), stored[foreign..=foreign]);

        server.command(&["DEL", &stored[foreign]]);
        set(server, &stored[foreign], b"value");
        assert_eq!(
            kind_of(limits.check_all(requests()).await),
            StoreErrorKind::UnknownLayout
        );
        assert_eq!(names(server, &namespace), stored[foreign..=foreign]);
        assert_eq!(get(server, &stored[foreign]), b"value");
    }
}

/// A string of all moments took 0.2 to 0.7 s, in which the server answered no other command.
#[tokio::test]
async fn large_cost_on_large_window_is_written_in_blocks() {
    let server = RedisServer::start();
    let limits = limiter(&server, &namespace());
    limits.ready().await.unwrap();
    let policy = window("w", 1_000_000, "1h");
    let script_memory =
        || stat(&server, "memory", "used_memory_vm_eval:") + stat(&server, "memory", "used_memory_lua:");
    let before = script_memory();
    for (cost, left) in [(900_000, 100_000), (99_000, 1_000), (1_000, 0)] {
        let decision = limits.check(&policy, KEY).cost(cost).await.unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        assert_eq!(only(&decision).remaining().whole(), left);
    }
    assert!(!limits.check(&policy, KEY).await.unwrap().is_allowed());
    let grown = script_memory().saturating_sub(before);
    assert!(grown < 2_000_000, "{grown} bytes of script memory");
    limits.refund(&policy, KEY).cost(500_000).await.unwrap();
    let grown = script_memory().saturating_sub(before);
    assert!(grown < 2_000_000, "{grown} bytes of script memory");
    assert_eq!(
        only(&limits.peek(&policy, KEY).await.unwrap())
            .remaining()
            .whole(),
        500_000
    );
}
