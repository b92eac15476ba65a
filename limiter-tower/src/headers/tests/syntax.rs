use super::*;
use crate::headers::header_buffer::HeaderBuffer;
use limiter_core::Enforcement;
use std::time::Duration;

fn bucket(name: &str, capacity: f64, rate: &str) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate(rate)
        .build()
        .unwrap()
}

fn window(name: &str, limit: u32, window: &str) -> Policy {
    Policy::sliding_window(name)
        .limit(limit)
        .window(window)
        .build()
        .unwrap()
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers[name].to_str().unwrap()
}

#[tokio::test]
async fn dialects_describe_the_same_limits() {
    let (limits, _clock) = limiter();
    let policies = [bucket("burst", 100.5, "100/min"), window("daily", 1_000, "1d")];
    let requests = policies
        .iter()
        .map(|policy| LimitRequest::new(policy, "ann").cost(30));
    let decision = limits.check_all(requests).await.unwrap();
    let headers_in = |dialect| headers(&decision, dialect);

    let eleven = headers_in(RateLimitHeaders::Draft11);
    assert_eq!(eleven.len(), 2);
    assert_eq!(
        value(&eleven, "ratelimit-policy"),
        r#""burst";q=100;w=61, "daily";q=1000;w=86400"#
    );
    assert_eq!(
        value(&eleven, "ratelimit"),
        r#""burst";r=70;t=42, "daily";r=970;t=86400"#
    );
    let ten = headers_in(RateLimitHeaders::Draft10);
    assert_eq!(ten["ratelimit-policy"], eleven["ratelimit-policy"]);
    assert_eq!(
        value(&ten, "ratelimit"),
        r#""burst";r=70;t=1, "daily";r=970;t=86400"#
    );
    let seven = headers_in(RateLimitHeaders::Draft7);
    assert_eq!(seven.len(), 2);
    assert_eq!(value(&seven, "ratelimit-policy"), "100;w=61, 1000;w=86400");
    assert_eq!(value(&seven, "ratelimit"), "limit=100, remaining=70, reset=42");
    let legacy = headers_in(RateLimitHeaders::Legacy);
    assert_eq!(legacy.len(), 3);
    assert_eq!(value(&legacy, "x-ratelimit-limit"), "100");
    assert_eq!(value(&legacy, "x-ratelimit-remaining"), "70");
    assert_eq!(value(&legacy, "x-ratelimit-reset"), "42");
    assert!(headers_in(RateLimitHeaders::None).is_empty());
}

#[tokio::test]
async fn denial_has_zero_remaining_and_reset_of_its_cost() {
    let (limits, _clock) = limiter();
    let policies = [window("burst", 5, "1m"), window("daily", 100, "1d")];
    for (cost, fits) in [(3, true), (3, false)] {
        let requests = policies
            .iter()
            .map(|policy| LimitRequest::new(policy, "ann").cost(cost));
        let decision = limits.check_all(requests).await.unwrap();
        assert_eq!(decision.is_allowed(), fits);
        for dialect in DIALECTS.into_iter().filter(|_| !fits) {
            let read = read(&headers(&decision, dialect), dialect);
            let first = Read {
                remaining: 0,
                window: Some(60),
            };
            assert_eq!(
                read[0], first,
                "a cost of three does not fit two permits: {dialect:?}"
            );
        }
    }
}

/// For arbitrary names and sizes of policies.
#[tokio::test]
async fn lists_are_valid_structured_fields() {
    let (limits, _clock) = limiter();
    let long = "n\"\\".repeat(80);
    let names = [
        "a",
        "with space",
        "quo\"te",
        "back\\slash",
        "50%",
        "café",
        "tab\tlf\n",
        "a,b;c=1",
        "\u{7f}",
        &long,
    ];
    for (place, name) in names.into_iter().enumerate() {
        let policies = [
            bucket(name, 0.5, "1/30d"),
            bucket("large", 1e9, "1_000_000/s"),
            window("short", 7, "20ms"),
        ];
        let requests = policies
            .iter()
            .map(|policy| LimitRequest::new(policy, place).cost(0));
        let decision = limits.check_all(requests).await.unwrap();
        for dialect in [RateLimitHeaders::Draft11, RateLimitHeaders::Draft10] {
            let headers = headers(&decision, dialect);
            let (policy, limit) = (list(&headers, "ratelimit-policy"), list(&headers, "ratelimit"));
            assert_eq!((policy.len(), limit.len()), (3, 3), "{name}");
            for (one, other) in policy.iter().zip(&limit) {
                assert_eq!(string(one), string(other));
                assert!(integer(other, "t").unwrap() > 0);
            }
            assert_eq!(decoded(string(&policy[0])), name, "names stay distinct");
            let quotas: Vec<_> = policy.iter().map(|item| integer(item, "q").unwrap()).collect();
            assert_eq!(quotas, [0, 1_000_000_000, 7]);
            let windows: Vec<_> = policy.iter().map(|item| integer(item, "w")).collect();
            assert_eq!(
                windows,
                [Some(1_296_000), Some(1_000), None],
                "windows are at least one second"
            );
        }
        let seven = headers(&decision, RateLimitHeaders::Draft7);
        let quotas: Vec<_> = list(&seven, "ratelimit-policy").iter().map(number).collect();
        assert_eq!(quotas, [0, 1_000_000_000, 7]);
    }
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn numbers_are_clamped_to_structured_field_range() {
    for (number, written) in [
        (0, "0"),
        (9, "9"),
        (10, "10"),
        (999_999_999_999_999, "999999999999999"),
        (u64::MAX, "999999999999999"),
    ] {
        let mut text = HeaderBuffer::default();
        text.integer(number);
        assert_eq!(text.into_bytes(), written);
    }
    let mut text = HeaderBuffer::default();
    text.seconds(Duration::from_micros(1));
    text.seconds(Duration::from_micros(1_000_001));
    assert_eq!(text.into_bytes(), "12", "rounded up");
}

#[tokio::test]
async fn draft_7_names_one_of_two_policies_with_equal_quota() {
    let (limits, _clock) = limiter();
    let policies = [
        window("second", 10, "1s"),
        window("minute", 10, "1m"),
        window("hour", 20, "1h"),
    ];
    let headers = headers(&call(&limits, &policies).await, RateLimitHeaders::Draft7);
    assert_eq!(value(&headers, "ratelimit-policy"), "10;w=1, 20;w=3600");
    assert_eq!(
        value(&headers, "ratelimit"),
        "limit=10, remaining=9, reset=60",
        "the slower of two equal limits"
    );
}

#[tokio::test]
async fn concurrency_limit_has_no_window() {
    let (limits, _clock) = limiter();
    let policy = Policy::concurrency("slots").max(3).build().unwrap();
    let permit = limits.acquire_concurrency(&policy, "ann").await.unwrap();
    let headers_in = |dialect| headers(permit.decision(), dialect);
    let eleven = headers_in(RateLimitHeaders::Draft11);
    assert_eq!(
        value(&eleven, "ratelimit-policy"),
        r#""slots";q=3;qu="concurrent-requests""#
    );
    assert_eq!(value(&eleven, "ratelimit"), r#""slots";r=2"#);
    assert!(
        headers_in(RateLimitHeaders::Draft7).is_empty() && headers_in(RateLimitHeaders::Legacy).is_empty()
    );
}

#[tokio::test]
async fn shadow_limits_are_omitted() {
    let (limits, _clock) = limiter();
    let shadow = Policy::sliding_window("shadow").limit(1).window("1m");
    let shadow = shadow.enforcement(Enforcement::Shadow).build().unwrap();
    let policies = [shadow, window("burst", 5, "1m")];
    for remaining in [4, 3] {
        let headers = headers(&call(&limits, &policies).await, RateLimitHeaders::Draft11);
        assert_eq!(
            value(&headers, "ratelimit"),
            format!(r#""burst";r={remaining};t=60"#)
        );
        assert_eq!(value(&headers, "ratelimit-policy"), r#""burst";q=5;w=60"#);
    }
    let alone = call(&limits, &policies[..1]).await;
    assert!(
        DIALECTS
            .iter()
            .all(|dialect| headers(&alone, *dialect).is_empty())
    );
}

/// The headers of an inner layer, in another form, or of a handler.
#[tokio::test]
async fn existing_headers_are_merged_or_kept() {
    let (limits, _clock) = limiter();
    let policies = [window("outer", 5, "1m")];
    let decision = call(&limits, &policies).await;
    let write = |dialect, lines: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        RateLimitFields::from_decision(&decision, dialect, &Costs::Same(Amount::ONE))
            .unwrap()
            .write(&mut headers);
        headers
    };
    let inner = [
        ("ratelimit-policy", r#""inner";q=9;w=1"#),
        ("ratelimit", r#""inner";r=1;t=1"#),
    ];
    let both = write(RateLimitHeaders::Draft11, &inner);
    let names: Vec<_> = list(&both, "ratelimit")
        .iter()
        .map(|item| string(item).to_owned())
        .collect();
    assert_eq!(names, ["inner", "outer"]);
    assert_eq!(list(&both, "ratelimit-policy").len(), 2);

    let other = write(
        RateLimitHeaders::Draft11,
        &[("ratelimit", "limit=9, remaining=1, reset=1")],
    );
    assert_eq!(
        other.get_all("ratelimit").iter().count(),
        1,
        "a list and a dictionary do not mix"
    );

    for (line, kept) in [
        ("limit=9, remaining=3, reset=1", true),
        ("limit=9, remaining=5, reset=1", false),
        ("\"inner\";r=9", true),
    ] {
        let headers = write(RateLimitHeaders::Draft7, &[("ratelimit", line)]);
        assert_eq!(value(&headers, "ratelimit") == line, kept, "{line}");
    }
    for (remaining, kept) in [("3", true), ("5", false), ("many", true)] {
        let headers = write(RateLimitHeaders::Legacy, &[("x-ratelimit-remaining", remaining)]);
        assert_eq!(
            value(&headers, "x-ratelimit-remaining") == remaining,
            kept,
            "{remaining}"
        );
    }
}
