//! A decision in process allocates nothing, once its key is there.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use limiter_core::registry::{KeyOverride, PolicyRegistry};
use limiter_core::{Decision, Key, KeyList, Limiter, Policy, Rejection, token_limiter};

#[expect(clippy::expect_used, reason = "a test ends that way")]
fn policies() -> [Policy; 3] {
    [
        Policy::token_bucket("bucket")
            .capacity(1_000)
            .rate("1/30d")
            .build(),
        Policy::funnel("funnel").capacity(1_000).rate("1/30d").build(),
        Policy::sliding_window("window")
            .limit(1_000)
            .window("30d")
            .build(),
    ]
    .map(|policy| policy.expect("valid"))
}

/// In process a decision needs no runtime.
#[expect(clippy::expect_used, clippy::panic, reason = "a test ends that way")]
fn is_allowed<'a>(check: impl IntoFuture<Output = Result<Decision, Rejection>> + 'a) -> bool {
    match pin!(check.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.expect("decided").is_allowed(),
        Poll::Pending => panic!("an in-process decision must be ready at the first poll"),
    }
}

#[test]
fn decision_for_known_key_allocates_nothing() {
    let limits = Limiter::in_process().build();
    for policy in &policies() {
        let keys = [Key::from("user:7"), Key::from("user:7").in_group("tenant:3")];
        for key in &keys {
            // The first decision of a thread or key initializes state; a ring of times has its
            // final size when it is full.
            while is_allowed(limits.check(policy, key)) {}
            let denied = measure(|| {
                for cost in [1, 7, 1_000] {
                    assert!(!is_allowed(limits.check(policy, key).cost(cost)));
                    assert!(is_allowed(limits.peek(policy, key).cost(0)));
                }
            });
            assert_eq!(denied.count_total, 0, "{policy}, denied");
        }
    }
}

#[test]
fn charge_of_known_key_allocates_nothing() {
    let limits = Limiter::in_process().build();
    for policy in &policies()[..2] {
        let text = String::from("user:7");
        assert!(is_allowed(limits.check(policy, &text)));
        let allowed = measure(|| {
            for _ in 0..100 {
                assert!(is_allowed(limits.check(policy, &text)));
                assert!(is_allowed(limits.peek(policy, &text).cost(3)));
            }
        });
        assert_eq!(allowed.count_total, 0, "{policy}");
    }
}

/// The list of the requests, and the list of their outcomes.
#[test]
fn check_of_several_limits_allocates_two_lists() {
    let limits = Limiter::in_process().build();
    let [bucket, funnel, _] = &policies();
    let key = String::from("user:7");
    let both = || [(bucket, &key), (funnel, &key)];
    assert!(is_allowed(limits.check_all(both())));
    let allowed = measure(|| assert!(is_allowed(limits.check_all(both()))));
    assert_eq!(allowed.count_total, 2);
}

#[test]
fn check_by_name_allocates_nothing() {
    let registry = PolicyRegistry::new();
    let limits = Limiter::in_process().registry(&registry).build();
    for policy in &policies()[..2] {
        registry.set(policy);
        let own = KeyOverride::new(policy.clone(), "user:8");
        assert!(registry.set_override(own).is_ok());
        let named = limits.named(policy.name());
        let (text, other) = (String::from("user:7"), String::from("user:8"));
        assert!(is_allowed(named.check(&text)) && is_allowed(named.check(&other)));
        let allowed = measure(|| {
            for _ in 0..100 {
                assert!(is_allowed(named.check(&text)));
                assert!(is_allowed(named.check(&other)));
                assert!(is_allowed(named.peek(&text).cost(3)));
            }
        });
        assert_eq!(allowed.count_total, 0, "{policy}");
    }
    let nothing = limits.named("nothing");
    assert!(is_allowed(nothing.check("user:7")));
    let free = measure(|| assert!(is_allowed(nothing.check("user:7"))));
    assert_eq!(free.count_total, 0, "not configured");
}

#[test]
fn key_list_lookup_allocates_nothing() {
    #[expect(clippy::expect_used, reason = "a test ends that way")]
    let list = KeyList::parse(["10.0.0.0/8", "2001:db8::/32", "user:*", "ann"]).expect("valid");
    let text = String::from("user:7");
    let part = Key::global().part("2001:db8::1");
    let looked = measure(|| {
        assert!(list.contains(&text) && list.contains("ann") && list.contains("10.1.2.3"));
        assert!(list.contains(&part) && !list.contains("2001:db9::1") && !list.contains("bob"));
    });
    assert_eq!(looked.count_total, 0);
}

#[test]
fn number_or_address_key_allocates_once() {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    let mapped = Ipv4Addr::new(255, 254, 253, 252).to_ipv6_mapped();
    let longest = Ipv6Addr::from_bits(u128::MAX);
    for (key, text) in [
        (
            (|| Key::from(Ipv4Addr::new(192, 0, 2, 130))) as fn() -> Key<'static>,
            "192.0.2.130".to_owned(),
        ),
        (|| Key::from(IpAddr::from(Ipv6Addr::LOCALHOST)), "::1".to_owned()),
        (
            || Key::from(Ipv4Addr::new(255, 254, 253, 252).to_ipv6_mapped()),
            mapped.to_string(),
        ),
        (|| Key::from(Ipv6Addr::from_bits(u128::MAX)), longest.to_string()),
        (|| Key::from(u128::MAX), u128::MAX.to_string()),
        (|| Key::from(i64::MIN), i64::MIN.to_string()),
        (|| Key::from(&7_u16), "7".to_owned()),
    ] {
        let counted = measure(|| drop(key()));
        assert_eq!(counted.count_total, 1, "{text}");
        assert_eq!(key(), Key::from(text));
    }
}

#[token_limiter(name = "free", capacity = 1_000, rate = "1/30d", limiter = limits)]
async fn without_key(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "template", capacity = 1_000, rate = "1/30d", key = "user:{user}", limiter = limits)]
async fn with_template(limits: &Limiter, user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "borrowed", capacity = 1_000, rate = "1/30d", key = "{user}", limiter = limits)]
async fn with_borrowed(limits: &Limiter, user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "expression", capacity = 1_000, rate = "1/30d", key = user, limiter = limits)]
async fn with_expression(limits: &Limiter, user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[expect(clippy::panic, reason = "a test ends that way")]
fn is_admitted(call: impl Future<Output = Result<(), Rejection>>) -> bool {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.is_ok(),
        Poll::Pending => panic!("in process a call is decided at once"),
    }
}

#[test]
fn annotated_call_of_known_key_allocates_nothing() {
    let limits = Limiter::in_process().build();
    // The longest key that is stored unhashed, and one with characters that are escaped.
    let (longest, escaped) = ("x".repeat(195), "a:b|{c}");
    for user in ["ann", &longest, escaped] {
        let calls = || {
            assert!(is_admitted(without_key(&limits)));
            assert!(is_admitted(with_template(&limits, user)));
            assert!(is_admitted(with_borrowed(&limits, user)));
            assert!(is_admitted(with_expression(&limits, user)));
        };
        calls();
        assert_eq!(measure(calls).count_total, 0, "{user}");
    }
}
