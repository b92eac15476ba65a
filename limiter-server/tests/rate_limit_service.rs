//! The rate limit service over gRPC: every field of requests and responses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use limiter_server::gateway::envoy::messages::{Code, RateLimitDescriptor, RateLimitRequest, Unit};
use limiter_testing::RedisServer;
use prost::Message;
use prost_types::value::Kind;
use support::access::TOKEN;
use support::descriptors::{DescriptorExt as _, codes, descriptor, descriptor_of, metadata, request};
use support::rls::{RlsClient, frame};
use support::server::Server;
use support::stores::redis_args;
use tonic::Code as TonicCode;

const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 3
window = "10m"

[policy.bucket]
algorithm = "token_bucket"
capacity = 10
rate = "1/h"

[policy.trial]
algorithm = "sliding_window"
limit = 1
window = "1h"
enforcement = "shadow"

[policy.off]
algorithm = "sliding_window"
limit = 1
window = "1h"
enforcement = "off"

[policy.tokens]
algorithm = "token_bucket"
capacity = 10
rate = "1/h"

[policy.export]
algorithm = "concurrency"
max = 1

[[rule]]
match = ["search"]
policy = "search"

[[rule]]
match = ["bucket"]
policy = "bucket"

[[rule]]
match = ["trial"]
policy = "trial"

[[rule]]
match = ["off"]
policy = "off"

[[rule]]
match = ["tokens"]
policy = "tokens"
settle = true
"#;

/// A policy whose list denies a key.
const BARRED: &str = r#"
[policy.barred]
algorithm = "sliding_window"
limit = 5
window = "1h"
deny_keys = ["eve"]

[[rule]]
match = ["barred"]
policy = "barred"
"#;

fn text(text: &str) -> Option<Kind> {
    Some(Kind::StringValue(text.to_owned()))
}

#[test]
fn status_has_limit_remaining_and_reset() {
    let server = Server::with_policies(POLICIES, &["--node", "edge-1"]);
    let client = RlsClient::connect(server.grpc());
    let call = request(&[descriptor("search", "ann")]);
    let first = client.decide(&call).unwrap();
    assert_eq!((first.overall_code(), codes(&first)), (Code::Ok, vec![Code::Ok]));
    let status = &first.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (
            limit.requests_per_unit,
            limit.unit(),
            limit.unit_multiplier,
            &*limit.name
        ),
        (3, Unit::Minute, Some(10), "search")
    );
    assert_eq!(status.limit_remaining, 2);
    assert_eq!(status.duration_until_reset.unwrap().seconds, 600);
    assert_eq!(first.dynamic_metadata, None);
    assert!(first.response_headers_to_add.is_empty());

    client.decide(&call).unwrap();
    client.decide(&call).unwrap();
    let denied = client.decide(&call).unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    let status = &denied.statuses[0];
    assert_eq!((status.code(), status.limit_remaining), (Code::OverLimit, 0));
    let wait = status.duration_until_reset.unwrap();
    assert!((590..=600).contains(&wait.seconds) && wait.nanos == 0, "{wait:?}");
    let header = &denied.response_headers_to_add[0];
    assert_eq!(
        (&*header.key, &*header.value),
        ("retry-after", &*wait.seconds.to_string())
    );
    for (name, expected) in [
        ("policy", "search"),
        ("origin", "memory"),
        ("reason", "limit reached"),
        ("node", "edge-1"),
        ("revision", "1"),
    ] {
        assert_eq!(metadata(&denied, name), text(expected), "{name}");
    }
    assert_eq!(
        metadata(&denied, "key"),
        None,
        "keys are shown only where configured"
    );
    assert_eq!(metadata(&denied, "denied"), Some(Kind::BoolValue(true)));
}

#[test]
fn key_is_shown_plain_or_hashed_where_configured() {
    for (form, expected) in [("plain", "ann"), ("hashed", "f91bd74b57e5")] {
        let directory = support::server::Directory::new();
        let policies = directory.write("policies.toml", POLICIES);
        let secret = directory.write("secret", "not a real secret\n");
        let server = Server::start(
            directory,
            &[
                "--policies",
                policies.to_str().unwrap(),
                "--key-in-metadata",
                form,
                "--key-secret-file",
                secret.to_str().unwrap(),
            ],
        );
        let client = RlsClient::connect(server.grpc());
        let denied = client
            .decide(&request(&[descriptor("search", "ann").hits(4)]))
            .unwrap();
        assert_eq!(metadata(&denied, "key"), text(expected), "{form}");
        assert_eq!(metadata(&denied, "reason"), text("cost exceeds the capacity"));
        assert!(
            denied.response_headers_to_add.is_empty(),
            "a retry cannot succeed"
        );
    }
}

/// A denial at the limit names the rule with its domain and patterns, and the key.
#[test]
fn denial_names_key_and_rule() {
    let rule = "[[rule]]\ndomain = 'edge'\nmatch = ['route=login', 'address']\npolicy = 'search'\n";
    let server = Server::with_policies(&format!("{POLICIES}\n{rule}"), &["--key-in-metadata", "plain"]);
    let client = RlsClient::connect(server.grpc());
    let login = descriptor_of(&[("route", "login"), ("address", "1.2.3.4")]);
    let login = request(&[login]);
    let mut denied = client.decide(&login).unwrap();
    for _ in 0..100 {
        if denied.overall_code() == Code::OverLimit {
            break;
        }
        assert_eq!(
            metadata(&denied, "rule"),
            None,
            "an allowed request has no metadata"
        );
        denied = client.decide(&login).unwrap();
    }
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(metadata(&denied, "rule"), text("edge: route=login, address"));
    assert_eq!(metadata(&denied, "key"), text("1.2.3.4"));
    assert_eq!(metadata(&denied, "policy"), text("search"));
}

#[test]
fn one_denial_charges_no_descriptor() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let both = request(&[
        descriptor("bucket", "a"),
        descriptor("search", "b").hits(3),
        descriptor("bucket", "c"),
    ]);
    assert_eq!(codes(&client.decide(&both).unwrap()), [Code::Ok; 3]);
    let denied = client.decide(&both).unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit, Code::Ok]);
    for key in ["a", "c"] {
        let peek = client
            .decide(&request(&[descriptor("bucket", key).hits(0)]))
            .unwrap();
        assert_eq!(peek.statuses[0].limit_remaining, 9, "{key}");
    }
    assert_eq!(server.metric("limiter_server_failed_refunds_total "), 0.0);
}

/// After the time of one denial, the other one would deny the request again.
#[test]
fn denial_that_no_retry_ends_has_no_retry_time() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let used = descriptor("search", "ann").hits(3);
    assert_eq!(client.decide(&request(&[used])).unwrap().overall_code(), Code::Ok);
    let (limited, never) = (descriptor("search", "ann"), descriptor("bucket", "ann").hits(11));
    for descriptors in [[limited.clone(), never.clone()], [never, limited.clone()]] {
        let denied = client.decide(&request(&descriptors)).unwrap();
        assert_eq!(codes(&denied), [Code::OverLimit; 2], "{denied:?}");
        assert!(denied.response_headers_to_add.is_empty(), "{denied:?}");
    }
    let denied = client.decide(&request(&[limited])).unwrap();
    assert_eq!(denied.response_headers_to_add.len(), 1, "{denied:?}");
}

#[test]
fn hits_come_from_the_descriptor_or_the_request() {
    let server = Server::with_token(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    let left = |hits_addend, descriptor| {
        let request = RateLimitRequest {
            hits_addend,
            ..request(&[descriptor])
        };
        client.decide(&request).unwrap().statuses[0].limit_remaining
    };
    let bucket = || descriptor("bucket", "ann");
    assert_eq!(left(0, bucket()), 9, "0 of the request is 1");
    assert_eq!(left(3, bucket()), 6);
    assert_eq!(left(3, bucket().hits(2)), 4, "the descriptor has precedence");
    assert_eq!(left(3, bucket().hits(0)), 4, "0 of a descriptor is a peek");
    let refund = |hits| bucket().hits(hits).negative();
    assert_eq!(left(0, refund(2)), 6);
    assert_eq!(left(0, refund(1_000)), 10, "a refund never exceeds the capacity");
}

#[test]
fn used_up_limit_denies_a_peek() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    client
        .decide(&request(&[descriptor("search", "ann").hits(3)]))
        .unwrap();
    let peek = client
        .decide(&request(&[descriptor("search", "ann").hits(0)]))
        .unwrap();
    assert_eq!(peek.overall_code(), Code::OverLimit);
}

#[test]
fn settled_cost_exceeds_the_capacity_as_debt() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let tokens = |hits| request(&[descriptor("tokens", "ann").hits(hits)]);
    assert_eq!(client.decide(&tokens(0)).unwrap().overall_code(), Code::Ok);
    let charged = client.decide(&tokens(25)).unwrap();
    assert_eq!(
        (charged.overall_code(), charged.statuses[0].limit_remaining),
        (Code::Ok, 0)
    );
    let denied = client.decide(&tokens(0)).unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    let wait = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!(
        (15 * 3_600..=17 * 3_600).contains(&wait),
        "a debt of 15 permits: {wait}"
    );
}

#[test]
fn policy_in_shadow_mode_allows_and_reports() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let call = request(&[descriptor("trial", "ann"), descriptor("off", "ann")]);
    assert_eq!(client.decide(&call).unwrap().dynamic_metadata, None);
    let second = client.decide(&call).unwrap();
    assert_eq!(
        (second.overall_code(), codes(&second)),
        (Code::Ok, vec![Code::Ok; 2])
    );
    assert_eq!(metadata(&second, "policy"), text("trial"));
    assert_eq!(metadata(&second, "would_deny"), Some(Kind::BoolValue(true)));
    assert_eq!(metadata(&second, "denied"), Some(Kind::BoolValue(false)));
    assert_eq!(second.statuses[1].limit_remaining, u32::MAX, "off is unlimited");
}

/// The limits of one key are one decision, in which limits that are not enforced take no part.
#[test]
fn denial_belongs_to_the_descriptor_that_is_denied() {
    let policies = format!("{POLICIES}{BARRED}");
    let server = Server::with_policies(&policies, &[]);
    let client = RlsClient::connect(server.grpc());
    let used = request(&[descriptor("search", "ann").hits(3)]);
    assert_eq!(client.decide(&used).unwrap().overall_code(), Code::Ok);
    for (descriptors, at, policy) in [
        ([("trial", "ann"), ("search", "ann")], 1, "search"),
        ([("off", "ann"), ("search", "ann")], 1, "search"),
        ([("search", "ann"), ("trial", "ann")], 0, "search"),
        ([("bucket", "eve"), ("barred", "eve")], 1, "barred"),
        ([("barred", "eve"), ("bucket", "eve")], 0, "barred"),
    ] {
        let descriptors = descriptors.map(|(key, value)| descriptor(key, value));
        for hits in [0, 1, 5] {
            let call = descriptors.clone().map(|of| of.hits(hits));
            let denied = client.decide(&request(&call)).unwrap();
            let mut expected = [Code::Ok; 2];
            expected[at] = Code::OverLimit;
            assert_eq!(codes(&denied), expected, "{denied:?}");
            let limit = denied.statuses[at].current_limit.as_ref();
            assert_eq!(limit.map(|limit| &*limit.name), Some(policy), "{denied:?}");
            assert_eq!(metadata(&denied, "policy"), text(policy));
        }
    }
}

#[test]
fn unmatched_descriptor_has_the_configured_result() {
    for (setting, expected) in [("allow", Code::Ok), ("deny", Code::OverLimit)] {
        let server = Server::with_policies(POLICIES, &["--unmatched", setting]);
        let client = RlsClient::connect(server.grpc());
        let answer = client.decide(&request(&[descriptor("nothing", "ann")])).unwrap();
        assert_eq!(
            (answer.overall_code(), codes(&answer)),
            (expected, vec![expected])
        );
        assert_eq!(answer.statuses[0].current_limit, None);
        let sample = "limiter_server_descriptors_total{policy=\"unmatched\"} ";
        assert_eq!(server.metric(sample), 1.0);
    }
}

#[test]
fn malformed_request_is_rejected_with_a_message() {
    let server = Server::with_policies(POLICIES, &["--max-descriptors", "20"]);
    let client = RlsClient::connect(server.grpc());
    let valid = request(&[descriptor("search", "ann")]);
    let cases = [
        (
            RateLimitRequest {
                domain: String::new(),
                ..valid.clone()
            },
            "the domain is empty",
        ),
        (request(&[]), "no descriptors"),
        (
            request(&[RateLimitDescriptor::default()]),
            "descriptor 0 has no entries",
        ),
        (
            request(&vec![descriptor("search", "ann"); 21]),
            "21 descriptors, expected at most 20",
        ),
        (
            request(&vec![descriptor("search", "ann"); 10_000]),
            "10000 descriptors",
        ),
    ];
    for (request, message) in cases {
        let status = client.decide(&request).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{message}");
        assert!(status.message().contains(message), "{status:?}");
    }
    let huge = request(&[descriptor("search", &"x".repeat(2 << 20))]);
    assert_eq!(client.decide(&huge).unwrap_err().code(), tonic::Code::OutOfRange);
    assert_eq!(client.decide(&valid).unwrap().overall_code(), Code::Ok);
}

#[test]
fn message_in_several_parts_is_decided() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let framed = frame(&request(&[descriptor("search", "ann")]).encode_to_vec());
    let bytes: Vec<Vec<u8>> = framed.iter().map(|byte| vec![*byte]).collect();
    let (prefix, message) = framed.split_at(5);
    for parts in [bytes, vec![prefix.to_vec(), Vec::new(), message.to_vec()]] {
        let answer = client.send_data(&parts).unwrap();
        assert_eq!(codes(&answer), [Code::Ok]);
    }
}

#[test]
fn invalid_frame_is_rejected_with_a_message() {
    let server = Server::with_policies(POLICIES, &["--max-message-bytes", "1000"]);
    let client = RlsClient::connect(server.grpc());
    let framed = frame(&request(&[descriptor("search", "ann")]).encode_to_vec());
    let truncated = framed[..framed.len() - 1].to_vec();
    let mut compressed = framed.clone();
    compressed[0] = 1;
    for (parts, code, reason) in [
        (vec![], TonicCode::InvalidArgument, "ended before"),
        (vec![vec![0, 0, 0]], TonicCode::InvalidArgument, "ended before"),
        (vec![truncated], TonicCode::InvalidArgument, "ended before"),
        (
            vec![frame(&[])],
            TonicCode::InvalidArgument,
            "the domain is empty",
        ),
        (vec![frame(&[0xff])], TonicCode::Internal, "cannot decode"),
        (
            vec![framed.clone(), framed.clone()],
            TonicCode::InvalidArgument,
            "more than one message",
        ),
        (
            vec![frame(&[0; 1_001])],
            TonicCode::OutOfRange,
            "1001 bytes, expected at most 1000",
        ),
        // The length alone rejects the message.
        (
            vec![vec![0, 0xff, 0xff, 0xff, 0xff]],
            TonicCode::OutOfRange,
            "expected at most 1000",
        ),
    ] {
        let error = client.send_data(&parts).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(reason), "{error}");
    }
    let error = client.send_data(&[compressed]).unwrap_err();
    assert_eq!(error.code(), TonicCode::Unimplemented, "{error}");
    assert_eq!(error.metadata().get("grpc-accept-encoding").unwrap(), "identity");
    // No rejected message was charged, and the connection is still usable.
    let answer = client.send_data(&[framed]).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 2);
}

#[test]
fn limit_in_a_descriptor_applies_in_configured_domains() {
    let server = Server::with_policies(POLICIES, &["--override-domains", "edge"]);
    let client = RlsClient::connect(server.grpc());
    let with_limit = |key, limit, unit| descriptor(key, "ann").limit(limit, unit, None);
    for key in ["search", "trial", "without a policy"] {
        let decide = |unit| client.decide(&request(&[with_limit(key, 1, unit)])).unwrap();
        assert_eq!(decide(Unit::Day).overall_code(), Code::Ok, "{key}");
        let denied = decide(Unit::Day);
        assert_eq!(denied.overall_code(), Code::OverLimit, "{key}");
        assert_eq!(
            denied.statuses[0].current_limit.as_ref().unwrap().unit(),
            Unit::Day
        );
        assert_eq!(
            decide(Unit::Hour).overall_code(),
            Code::Ok,
            "each unit has a separate state"
        );
    }
    let zero = client
        .decide(&request(&[with_limit("search", 0, Unit::Day)]))
        .unwrap();
    assert_eq!(zero.overall_code(), Code::OverLimit);
    let unknown = client.decide(&request(&[with_limit("search", 1, Unit::Unknown)]));
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::InvalidArgument);

    let server = Server::with_policies(POLICIES, &["--override-domains", "other"]);
    let client = RlsClient::connect(server.grpc());
    let call = request(&[with_limit("search", 1, Unit::Day)]);
    let ignored = client.decide(&call).unwrap();
    assert_eq!(
        ignored.statuses[0]
            .current_limit
            .as_ref()
            .unwrap()
            .requests_per_unit,
        3
    );
}

#[test]
fn edited_rules_apply_without_a_restart() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let call = request(&[descriptor("new", "ann")]);
    assert_eq!(client.decide(&call).unwrap().statuses[0].current_limit, None);
    let edited = format!("{POLICIES}\n[[rule]]\nmatch = ['new']\npolicy = 'bucket'\n");
    server.directory().write("policies.toml", &edited);
    server.signal("HUP");
    server.wait_for_log("policy file read again");
    let limit = client.decide(&call).unwrap().statuses[0]
        .current_limit
        .clone()
        .unwrap();
    assert_eq!(limit.name, "bucket");
}

#[test]
fn store_failure_is_unavailable_within_the_deadline() {
    let redis = RedisServer::start();
    let policies = POLICIES.replace(
        "window = \"10m\"",
        "window = \"10m\"\non_store_failure = \"error\"",
    );
    let server = Server::with_policies(&policies, &["--redis", &redis.url()]);
    let client = RlsClient::connect(server.grpc());
    let search = request(&[descriptor("search", "ann")]);
    support::server::wait_until(|| client.decide(&search).is_ok(), || server.log());
    redis.pause();
    for _ in 0..20 {
        let status = client.decide(&search).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    }
    redis.resume();
    redis.kill();
    let status = client.decide(&search).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    let local = client.decide(&request(&[descriptor("bucket", "ann")])).unwrap();
    assert_eq!(local.overall_code(), Code::Ok, "the local quota decides");
}

#[test]
fn sets_of_a_request_share_its_deadline() {
    let redis = RedisServer::start();
    let policies = POLICIES.replace("rate = \"1/h\"", "rate = \"1/h\"\ndeadline = \"800ms\"");
    let deadline = ["--redis", &redis.url(), "--decision-deadline", "1s"];
    let server = Server::with_policies(&policies, &deadline);
    let client = RlsClient::connect(server.grpc());
    // Keys without a common group: the sets are decided one after another.
    let call = request(&["ann", "bob", "eve"].map(|key| descriptor("bucket", key)));
    support::server::wait_until(|| client.decide(&call).is_ok(), || server.log());
    redis.pause();
    let local = client.decide(&call);
    redis.resume();
    assert_eq!(local.unwrap().overall_code(), Code::Ok, "the local quotas decide");
}

/// The rest of a deadline that no reply can meet does not open the circuit breaker.
#[test]
fn circuit_breaker_closes_after_an_outage_under_requests_of_several_sets() {
    let redis = RedisServer::start();
    let server = Server::with_policies(POLICIES, &["--redis", &redis.url()]);
    let client = RlsClient::connect(server.grpc());
    let keys: Vec<String> = (0..10).map(|number| format!("k{number}")).collect();
    let call = request(
        &keys
            .iter()
            .map(|key| descriptor("bucket", key))
            .collect::<Vec<_>>(),
    );
    let state = format!("limiter_breaker_state{{node=\"127.0.0.1:{}\"}}", redis.port());
    support::server::wait_until(|| client.decide(&call).is_ok(), || server.log());
    redis.pause();
    for _ in 0..3 {
        let _ = client.decide(&call);
    }
    redis.resume();
    let peek = request(&[descriptor("bucket", "ann").hits(0)]);
    let is_closed = || client.decide(&peek).is_ok() && server.metric(&state) == 0.0;
    support::server::wait_until(is_closed, || {
        let metrics = server.get("/metrics").body;
        let lines = metrics.lines().filter(|line| line.contains("breaker"));
        format!("{:?}: {}", lines.collect::<Vec<_>>(), server.log())
    });
}

#[test]
fn two_servers_on_one_redis_share_a_limit() {
    let redis = RedisServer::start();
    let url = redis.url();
    // The local quota of a server would allow more after a missed deadline.
    let args = redis_args(&url);
    let servers = [(); 2].map(|()| Server::with_policies(POLICIES, &args));
    let clients = servers.each_ref().map(|server| RlsClient::connect(server.grpc()));
    let call = request(&[descriptor("search", "ann")]);
    let allowed = (0..10).filter(|number| {
        let answer = clients[number % 2].decide(&call).unwrap();
        answer.overall_code() == Code::Ok
    });
    assert_eq!(allowed.count(), 3);
}

#[test]
fn health_and_reflection_describe_the_service() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    assert!(client.is_serving("envoy.service.ratelimit.v3.RateLimitService"));
    let files = client.files_of("envoy.service.ratelimit.v3.RateLimitService");
    assert!(
        files
            .iter()
            .any(|file| file.name() == "envoy/service/ratelimit/v3/rls.proto")
    );
}
