//! Foreign values at a key.

use limiter_core::{Allowed, LimitRequest, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;

use crate::support::{KEY, PATIENT, bucket, funnel, namespace, one_of_each, only, window};
use crate::{get, kind_of, limiter, name, set};

#[tokio::test]
async fn value_of_another_type_fails_only_its_own_decision() {
    let server = RedisServer::shared();
    for policy in one_of_each() {
        for foreign in [
            &["LPUSH", "value"][..],
            &["HSET", "field", "value"],
            &["SADD", "value"],
            &["ZADD", "1", "value"],
        ] {
            let namespace = namespace();
            let limits = limiter(server, &namespace);
            assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
            let name = name(server, &namespace);
            server.command(&["DEL", &name]);
            let mut command = foreign.to_vec();
            command.insert(1, &name);
            server.command(&command);
            let dump = server.command(&["DUMP", &name]);

            let other = bucket("other", 5, 1);
            assert_eq!(
                kind_of(limits.check(&policy, KEY).await),
                StoreErrorKind::WrongType
            );
            assert_eq!(
                kind_of(limits.peek(&policy, KEY).await),
                StoreErrorKind::WrongType
            );
            assert_eq!(
                kind_of(limits.acquire(&policy, KEY).await.map(Allowed::into_decision)),
                StoreErrorKind::WrongType
            );
            let rejection = limits.check(&policy, KEY).await.unwrap_err();
            let diagnostic = rejection.diagnostic().to_string();
            assert!(
                diagnostic.contains("contains a value of another type"),
                "{diagnostic}"
            );
            assert_eq!(rejection.to_string(), "the rate limiter is unavailable");
            for requests in [[&other, &policy], [&policy, &other]] {
                let requests = requests.map(|policy| LimitRequest::new(policy, KEY));
                assert_eq!(
                    kind_of(limits.check_all(requests).await),
                    StoreErrorKind::WrongType
                );
            }
            assert_eq!(
                server.command(&["DUMP", &name]),
                dump,
                "{policy}: the value was changed"
            );
            assert_eq!(server.command(&["PTTL", &name]).integer(), -1, "{policy}");

            assert_eq!(
                limits.peek(&other, KEY).await.unwrap().remaining(),
                5,
                "charged with a decision that failed"
            );
            assert!(limits.check(&policy, "another").await.unwrap().is_allowed());
            assert!(limits.check(&other, KEY).await.unwrap().is_allowed());
        }
    }
}

/// A newer layout, foreign data, or a value cut short: an error, no fresh start, and the value
/// stays as it is.
#[tokio::test]
async fn unknown_layout_is_never_treated_as_unused() {
    let server = RedisServer::shared();
    let policies = [
        bucket("p", 5, "1/h"),
        funnel("p", 5, "1/h"),
        window("p", 5, "1h"),
        window("p", 500, "1h"),
    ];
    for policy in &policies {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        let cost = policy.quota();
        assert!(limits.check(policy, KEY).cost(cost).await.unwrap().is_allowed());
        let name = name(server, &namespace);
        let value = get(server, &name);
        let newer = [&[2], &value[1..]].concat();
        let other_algorithm = [&value[..1], &[value[1] % 3 + 1], &value[2..]].concat();
        let mut refused = vec![
            b"garbage".to_vec(),
            b"1".to_vec(),
            b"{\"tokens\":5}".to_vec(),
            vec![0xff; 64],
        ];
        refused.extend([
            newer,
            other_algorithm,
            vec![0; 42],
            vec![1; 42],
            vec![b'x'; 5_000],
        ]);
        refused.extend(
            (1..value.len())
                .step_by(7)
                .chain([value.len() - 1])
                .map(|length| value[..length].to_vec()),
        );
        for value in refused {
            set(server, &name, &value);
            let shown = (policy, value.len(), &value[..value.len().min(8)]);
            assert_eq!(
                kind_of(limits.check(policy, KEY).await),
                StoreErrorKind::UnknownLayout,
                "{shown:?}"
            );
            assert_eq!(
                kind_of(limits.peek(policy, KEY).await),
                StoreErrorKind::UnknownLayout,
                "{shown:?}"
            );
            assert_eq!(get(server, &name), value, "the value was changed");
        }
    }
}

/// Some commands return an empty string for an absent key; it is still a value.
#[tokio::test]
async fn empty_value_is_an_unknown_layout() {
    let server = RedisServer::shared();
    for policy in one_of_each() {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
        let name = name(server, &namespace);
        set(server, &name, b"");
        let answer = limits.check(&policy, KEY).await;
        assert!(answer.is_err(), "{policy}: an empty value was treated as absent");
        assert_eq!(kind_of(answer), StoreErrorKind::UnknownLayout, "{policy}");
        assert_eq!(get(server, &name), b"", "{policy}: the value was changed");
    }
}

/// A state with impossible lease numbers was not written by these scripts.
#[tokio::test]
async fn invalid_lease_numbers_are_an_unknown_layout() {
    const AT: usize = 26;
    const KEEP_UNTIL: usize = 34;
    const SINCE: usize = 58;
    const EPOCH: usize = 66;
    let server = RedisServer::shared();
    for shape in [Policy::token_bucket("p"), Policy::funnel("p")] {
        let policy = shape.capacity(100).rate(1).lease("1m");
        let policy = policy.deadline(PATIENT).build().unwrap();
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
        let name = name(server, &namespace);
        let sound = get(server, &name);
        assert_eq!(sound.len(), 74, "{policy}: the value contains a lease");
        let number = |place: usize| u64::from_le_bytes(sound[place..place + 8].try_into().unwrap());
        // The stored value with some bytes replaced.
        let with = |place: usize, bytes: &[u8]| {
            let mut value = sound.clone();
            value[place..place + bytes.len()].copy_from_slice(bytes);
            value
        };
        let long_ago = (number(AT) - 30_000_001).to_le_bytes();
        let for_ever = ((1_u64 << 53) + 1).to_le_bytes();
        for value in [
            with(SINCE, &long_ago),
            with(SINCE, &[0; 8]),
            with(EPOCH, &[0; 4]),
            with(SINCE, &(number(AT) + 1).to_le_bytes()),
            with(KEEP_UNTIL, &for_ever),
            with(KEEP_UNTIL, &(number(AT) - 1).to_le_bytes()),
        ] {
            set(server, &name, &value);
            // A call that leases tokens, a call that does not, and a refund.
            let daily = window("d", 5, "1d");
            let limits = limiter(server, &namespace);
            assert_eq!(
                kind_of(limits.check(&policy, KEY).await),
                StoreErrorKind::UnknownLayout,
                "{policy}: {value:?}"
            );
            let both = [LimitRequest::new(&policy, KEY), LimitRequest::new(&daily, KEY)];
            assert_eq!(
                kind_of(limits.check_all(both).await),
                StoreErrorKind::UnknownLayout,
                "{policy}: {value:?}"
            );
            let refund = limits.refund(&policy, KEY).await;
            assert!(
                matches!(&refund, Err(Rejection::Unavailable { error, .. }) if error.kind() == StoreErrorKind::UnknownLayout),
                "{policy}: {value:?}: {refund:?}"
            );
            assert_eq!(get(server, &name), value, "the value was changed");
        }
        set(server, &name, &sound);
        let limits = limiter(server, &namespace);
        assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    }
}

/// Every damaged value causes a decision or a typed error; the script itself never fails.
#[tokio::test]
async fn damaged_value_does_not_break_script() {
    let server = RedisServer::shared();
    let mut random = fastrand::Rng::with_seed(11);
    let leased = [Policy::token_bucket("p"), Policy::funnel("p")].map(|shape| {
        let shape = shape.capacity(50).rate("7/3s").lease("1m");
        shape.deadline(PATIENT).build().unwrap()
    });
    for (policy, first) in [
        (bucket("p", 5, "7/3s"), None),
        (funnel("p", 5, "7/3s"), None),
        (window("p", 5, "3s"), None),
        (window("p", 200, "3s"), None),
        (bucket("p", 50, "7/3s"), leased.first()),
        (funnel("p", 50, "7/3s"), leased.last()),
    ] {
        let namespace = namespace();
        let limits = limiter(server, &namespace);
        for _ in 0..3 {
            let policy = first.unwrap_or(&policy);
            assert!(limits.check(policy, KEY).await.unwrap().is_allowed());
        }
        let name = name(server, &namespace);
        let sound = get(server, &name);
        for _ in 0..300 {
            let mut value = sound.clone();
            for _ in 0..random.usize(1..4) {
                // The layout and the algorithm are unchanged, so that the other fields are read.
                let place = random.usize(2..value.len());
                let byte = random.u8(..);
                value[place] = random.choice([0, 1, 0x7f, 0x80, 0xff, byte]).unwrap();
            }
            set(server, &name, &value);
            for _ in 0..2 {
                match limits.check(&policy, KEY).await {
                    Ok(decision) => {
                        let outcome = only(&decision);
                        assert!(
                            outcome.remaining() <= policy.quota(),
                            "{policy} {value:02x?}: {decision:?}"
                        );
                        assert!(
                            outcome.retry_after() <= outcome.reset_after().max(policy.window()),
                            "{policy} {value:02x?}: {decision:?}"
                        );
                    }
                    answer => assert_eq!(
                        kind_of(answer),
                        StoreErrorKind::UnknownLayout,
                        "{policy} {value:02x?}"
                    ),
                }
            }
        }
    }
}
