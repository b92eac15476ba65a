//! Rules of the registry: their text, their order among sources, and their publication.
#![cfg(feature = "registry")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::time::Duration;

use limiter_core::registry::{PolicyRegistry, RedisSubscription, Rule};
use limiter_core::{Limiter, Policy};
use limiter_testing::RedisServer;
use proptest::prelude::*;
use support::{PATIENT, namespace};
use tokio::time::timeout;

const POLICIES: &str = "
[policy.login]
algorithm = 'sliding_window'
limit = 5
window = '1m'

[policy.export]
algorithm = 'concurrency'
max = 2
";

fn with_rules(rules: &str) -> String {
    format!("{POLICIES}\n{rules}")
}

fn errors(rules: &str) -> Vec<String> {
    let error = PolicyRegistry::from_toml(&with_rules(rules)).unwrap_err();
    error.to_string().lines().map(str::to_owned).collect()
}

fn policies(registry: &PolicyRegistry) -> Vec<String> {
    registry
        .rules()
        .iter()
        .map(|rule| rule.patterns()[0].key().to_owned())
        .collect()
}

#[test]
fn rules_are_read_and_written() {
    let text = with_rules(
        "[[rule]]
        domain = 'edge'
        match = ['route=login', 'path=/api/*', 'remote_address', '...']
        policy = 'login'
        group = 'edge'
        share = true
        settle = true

        [[rule]]
        match = ['generic_key=']
        policy = 'login'
        ",
    );
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    let rules = registry.rules();
    let expected = Rule::new("login", ["route=login", "path=/api/*", "remote_address", "..."]).unwrap();
    let expected = expected.in_domain("edge").unwrap().in_group("edge").unwrap();
    assert_eq!(rules[0], expected.share_prefixes().unwrap().settle());
    assert_eq!(rules[1], Rule::new("login", ["generic_key="]).unwrap());
    // `...` is not a pattern.
    let [route, path, address] = <&[_; 3]>::try_from(rules[0].patterns()).unwrap();
    assert!(rules[0].allows_more_entries() && !rules[1].allows_more_entries());
    assert_eq!((route.exact_value(), route.prefix()), (Some("login"), None));
    assert_eq!((path.exact_value(), path.prefix()), (None, Some("/api/")));
    assert_eq!((address.exact_value(), address.prefix()), (None, None));
    assert!(path.matches("path", "/api/v1") && !path.matches("path", "/apis"));
    assert!(route.matches("route", "login") && !route.matches("route", "login2"));
    assert!(address.matches("remote_address", "") && !address.matches("address", ""));
    let written = registry.to_toml();
    let read = PolicyRegistry::from_toml(&written).unwrap();
    assert_eq!(read.rules(), rules);
    assert_eq!(read.to_toml(), written);
}

#[test]
fn errors_name_line_column_and_expectation() {
    assert_eq!(
        errors(
            "[[rule]]
match = ['=login', '...', 'path=*']
policy = 'logn'
colour = 'red'
[[rule]]
match = 'route'
policy = 'export'
domain = ''
[[rule]]
match = ['a', 'b=c']
policy = 'login'
share = true
[[rule]]
match = []
policy = 'login'
group = 7"
        ),
        [
            "text:12:10: rule[0].match[0] is '=login', expected `key=value`, `key=prefix*` or `key` of at most 1024 bytes, \
             and `...` at the end alone",
            "text:12:20: rule[0].match[1] is '...', expected `...` at the end alone",
            "text:13:10: rule[0].policy is 'logn', expected the name of a policy of the same text",
            "text:14:1: rule[0].colour is unknown, expected domain, match, policy, group, share or settle",
            "text:16:9: rule[1].match is 'route', expected a list of patterns, such as [\"route=login\", \"remote_address\"]",
            "text:17:10: rule[1].policy is 'export', expected a policy that is not of concurrency, because descriptors do \
             not report the end of a call",
            "text:18:10: rule[1].domain is '', expected 1 to 256 bytes",
            "text:22:9: rule[2].share is true, expected a pattern `key=prefix*` in `match`",
            "text:24:9: rule[3].match is [], expected 1 to 64 patterns",
            "text:26:9: rule[3].group is 7, expected text, in quotes",
        ]
    );
    let error = PolicyRegistry::from_toml("rule = 3").unwrap_err().to_string();
    assert_eq!(error, "text:1:8: rule is 3, expected tables such as [[rule]]");
}

#[test]
fn rules_of_files_precede_rules_of_code() {
    let login = Policy::sliding_window("login")
        .limit(5)
        .window("1m")
        .build()
        .unwrap();
    let registry = PolicyRegistry::new().with(login);
    let revision = registry.revision();
    registry
        .set_rules([Rule::new("login", ["code"]).unwrap()])
        .unwrap();
    assert_eq!(registry.revision(), revision + 1);
    registry
        .set_rules([Rule::new("login", ["code"]).unwrap()])
        .unwrap();
    assert_eq!(registry.revision(), revision + 1, "an equal list changes nothing");

    let path = std::env::temp_dir().join(format!("rules-{}.toml", std::process::id()));
    std::fs::write(&path, with_rules("[[rule]]\nmatch = ['file']\npolicy = 'login'")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let source =
        runtime.block_on(async { limiter_core::registry::FileSource::follow(&registry, &path).unwrap() });
    assert_eq!(policies(&registry), ["file", "code"]);
    drop(source);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn too_many_rules_are_rejected() {
    let rule = Rule::new("login", ["route"]).unwrap();
    let registry = PolicyRegistry::new();
    let rules = vec![rule; PolicyRegistry::MAX_RULES + 1];
    assert!(registry.set_rules(rules).is_err());
    assert!(Rule::new("login", vec!["a"; 65]).is_err());
    assert!(Rule::new("login", ["a".repeat(1_025)]).is_err());
    assert!(Rule::new("", ["a"]).is_err());
}

async fn synced(namespace: &str, server: &RedisServer) -> (Limiter, RedisSubscription) {
    let limiter = Limiter::redis(server.url()).namespace(namespace).build().unwrap();
    let subscription = limiter.redis_registry().unwrap().follow();
    let _ = subscription.synced().await;
    (limiter, subscription)
}

async fn wait_for(registry: &PolicyRegistry, expected: &[&str]) {
    let arrives = async {
        loop {
            let revision = registry.revision();
            if policies(registry) == expected {
                return;
            }
            registry.changed(revision).await;
        }
    };
    let arrived = timeout(PATIENT, arrives).await;
    assert!(arrived.is_ok(), "{:?}", policies(registry));
}

#[tokio::test]
async fn published_rules_reach_subscribers_and_survive_edits() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let (publisher, _source) = synced(&namespace, &server).await;
    let (replica, _followed) = synced(&namespace, &server).await;
    let redis = publisher.redis_registry().unwrap();
    let text = with_rules("[[rule]]\nmatch = ['first']\npolicy = 'login'");
    redis.publish(&text, 0).await.unwrap();
    wait_for(replica.registry(), &["first"]).await;

    let login = |limit: u32| Policy::sliding_window("login").limit(limit).window("1m").build();
    redis
        .edit(|draft| {
            draft.set(login(6)?);
            draft.set_rules([Rule::new("login", ["second"])?, draft.rules()[0].clone()])
        })
        .await
        .unwrap();
    wait_for(replica.registry(), &["second", "first"]).await;
    assert_eq!(
        replica.registry().get("login").unwrap().policy().quota().whole(),
        6
    );
}

#[tokio::test]
async fn unreadable_rule_keeps_the_previous_version_of_all_rules() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let (replica, source) = synced(&namespace, &server).await;
    let redis = replica.redis_registry().unwrap();
    let text = with_rules("[[rule]]\nmatch = ['first']\npolicy = 'login'");
    let revision = redis.publish(&text, 0).await.unwrap();

    let newer = with_rules(
        "[[rule]]\nmatch = { quantum = 1 }\npolicy = 'login'\n[[rule]]\nmatch = ['second']\npolicy = 'login'",
    );
    let newer = newer.replace("limit = 5", "limit = 9");
    let key = format!("{namespace}|book");
    server.command(&["SET", &key, &format!("revision = {}\n{newer}", revision + 1)]);
    let rejected = async {
        while source.last_error().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENT, rejected).await.unwrap();
    let error = source.last_error().unwrap().to_string();
    assert!(error.contains("rule[0].match is { quantum = 1 }"), "{error}");
    assert_eq!(policies(replica.registry()), ["first"]);
    assert_eq!(
        replica.registry().get("login").unwrap().policy().quota().whole(),
        9
    );

    let (late, _source) = synced(&namespace, &server).await;
    assert!(
        late.registry().rules().is_empty(),
        "a later rule does not apply in place of a rejected one"
    );
}

proptest! {
    #[test]
    fn accepted_rules_round_trip(
        patterns in prop::collection::vec("[a-z=*. \"\\\\é\u{1}]{0,8}", 1..5),
        domain in prop::option::of(".{1,8}"),
        group in prop::option::of(".{1,8}"),
        settle: bool,
    ) {
        let Ok(mut rule) = Rule::new("login", &patterns) else { return Ok(()) };
        if let Some(domain) = domain {
            rule = rule.in_domain(domain).unwrap();
        }
        if let Some(group) = group {
            rule = rule.in_group(group).unwrap();
        }
        if settle {
            rule = rule.settle();
        }
        if rule.patterns().iter().any(|pattern| pattern.prefix().is_some()) {
            rule = rule.share_prefixes().unwrap();
        }
        let registry = PolicyRegistry::from_toml(POLICIES).unwrap();
        registry.set_rules([rule]).unwrap();
        let read = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
        prop_assert_eq!(read.rules(), registry.rules());
    }
}
