#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends that way"
)]

use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use limiter_core::{Key, Limiter, ManualClock, Policy, Rejection, Timestamp};
use proptest::prelude::*;

use super::pause;
use crate::outbound::OutboundLayer;
use crate::outbound::peer_limits::{PeerLimits, PolicySource};

/// The time of this process: 2023-11-14 22:13:20 UTC.
const NOW: u64 = 1_700_000_000;

fn own_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

/// The pause that a response requests, in seconds.
fn parsed_pause(status: u16, fields: &[(&str, &str)]) -> Option<f64> {
    let status = StatusCode::from_u16(status).unwrap();
    pause(status, &headers(fields), &own_time).map(|pause| pause.as_secs_f64())
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        let name = HeaderName::try_from(*name).unwrap();
        (name, HeaderValue::try_from(*value).unwrap())
    };
    fields.iter().map(field).collect()
}

#[test]
fn retry_after_is_seconds_or_date_of_429_or_503() {
    let after = |status, value| parsed_pause(status, &[("retry-after", value)]);
    assert_eq!(after(429, "5"), Some(5.0));
    assert_eq!(after(503, " 5 "), Some(5.0));
    assert_eq!(
        after(429, "99999999999999"),
        Some(99_999_999_999_999.0),
        "the layer bounds it"
    );
    for overflow in [
        "18446744073709551616",
        "100000000000000000000",
        "999999999999999999999999999999",
    ] {
        let seconds = after(429, overflow).unwrap_or_default();
        assert!(seconds > 1e19, "the largest number of seconds: {overflow}");
    }
    assert_eq!(after(429, "Tue, 14 Nov 2023 22:13:25 GMT"), Some(5.0));
    assert_eq!(after(429, "Tuesday, 14-Nov-23 22:13:25 GMT"), Some(5.0));
    for status in [200, 301, 404, 413, 500] {
        assert_eq!(after(status, "5"), None, "{status}");
    }
    for garbage in [
        "",
        "0",
        "-5",
        "+5",
        "5.5",
        "5s",
        "five",
        "5, 5",
        "Tue, 14 Nov 2023 22:13:19 GMT",
        "Tue, 14 Nov 2023",
        "99999999999999999999999.",
        "-99999999999999999999999",
    ] {
        assert_eq!(after(429, garbage), None, "{garbage}");
    }
    assert_eq!(
        parsed_pause(429, &[("retry-after", "5"), ("retry-after", "7")]),
        None,
        "repeated with another value"
    );
    assert_eq!(
        parsed_pause(429, &[("retry-after", "5"), ("retry-after", " 5")]),
        Some(5.0),
        "repeated with the same value"
    );
}

#[test]
fn date_is_relative_to_peer_clock() {
    // An hour behind ours.
    let date = ("date", "Tue, 14 Nov 2023 21:13:20 GMT");
    let retry_after = ("retry-after", "Tue, 14 Nov 2023 21:13:30 GMT");
    assert_eq!(parsed_pause(429, &[date, retry_after]), Some(10.0));
    assert_eq!(parsed_pause(429, &[retry_after]), None);
    assert_eq!(parsed_pause(429, &[("date", "today"), retry_after]), None);
}

#[test]
fn exhausted_quota_pauses_for_every_status() {
    let says = |value| parsed_pause(200, &[("ratelimit", value)]);
    assert_eq!(says(r#""burst";r=0;t=5"#), Some(5.0));
    assert_eq!(
        says(r#""daily";r=9;t=900, "burst";t=5;r=0"#),
        Some(5.0),
        "only exhausted quotas count"
    );
    assert_eq!(
        says(r#""daily";r=0;t=900;pk=:YWJj:, "burst";r=0;t=5"#),
        Some(900.0)
    );
    assert_eq!(says("burst;r=0;t=5"), Some(5.0), "draft 08");
    assert_eq!(says("limit=100, remaining=0, reset=5"), Some(5.0), "draft 07");
    assert_eq!(says("reset=5, limit=100, remaining=0;x=y"), Some(5.0));
    for none in [
        "",
        r#""burst";r=1;t=5"#,
        r#""burst";r=0"#,
        r#""burst";t=5"#,
        r#""burst";r=0;t=0"#,
        r#""burst";r=0;t=-5"#,
        r#""burst";r=-1;t=5"#,
        r#""burst";r=0.0;t=5"#,
        r#""burst";r=0;t="5""#,
        r#""burst";r=0;t"#,
        r#""burst";r=0;t=5,"#,
        r#""burst;r=0;t=5"#,
        r#"("burst");r=0;t=5"#,
        "7;r=0;t=5",
        "limit=100, remaining=3, reset=5",
        "limit=100, reset=5",
        "limit=100, remaining=(0), reset=5",
        r#""burst";r=0, "daily";t=5"#,
    ] {
        assert_eq!(says(none), None, "{none}");
    }
    let lines = [
        ("ratelimit", r#""burst";r=0;t=5"#),
        ("ratelimit", r#""daily";r=0;t=50"#),
        ("ratelimit", "garbage,,"),
    ];
    assert_eq!(parsed_pause(200, &lines), Some(50.0));
}

#[test]
fn separate_fields_give_reset_in_seconds() {
    let says = |remaining, reset| {
        let fields = [("ratelimit-remaining", remaining), ("ratelimit-reset", reset)];
        parsed_pause(200, &fields)
    };
    assert_eq!(says("0", "5"), Some(5.0));
    assert_eq!(says("1", "5"), None);
    assert_eq!(says("0", "0"), None);
    assert_eq!(says("0", "soon"), None);
    assert_eq!(parsed_pause(200, &[("ratelimit-remaining", "0")]), None);
}

#[test]
fn legacy_field_is_used_if_unambiguous() {
    let says = |remaining, reset: &str| {
        let fields = [("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", reset)];
        parsed_pause(200, &fields)
    };
    assert_eq!(says("0", "5"), Some(5.0));
    assert_eq!(says("0", "86400"), Some(86_400.0));
    assert_eq!(says("0", "1700000060"), Some(60.0));
    assert_eq!(says("0", "1700000060500"), Some(60.5));
    for none in [
        "0",
        "86401",
        "999999999",
        "1700000000",
        "1699999999",
        "100000000000",
        "2023-11-14T22:13:25Z",
        "5.5",
    ] {
        assert_eq!(says("0", none), None, "{none}");
    }
    assert_eq!(says("1", "5"), None);
    assert_eq!(says("0.0", "5"), None);
    let dated = [
        ("date", "Tue, 14 Nov 2023 21:13:20 GMT"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1699996410"),
    ];
    assert_eq!(
        parsed_pause(429, &dated),
        Some(10.0),
        "relative to the clock of the peer"
    );
}

#[test]
fn retry_after_then_newest_fields_take_precedence() {
    let all = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "4"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "3"),
        ("ratelimit", r#""burst";r=0;t=2"#),
        ("retry-after", "1"),
    ];
    for (dropped, expected) in [(0, 1.0), (1, 2.0), (2, 3.0), (4, 4.0)] {
        assert_eq!(parsed_pause(429, &all[..all.len() - dropped]), Some(expected));
    }
    assert_eq!(
        parsed_pause(200, &all),
        Some(2.0),
        "`Retry-After` of a success does not concern the limit"
    );
    let floored = [("retry-after", "0"), ("ratelimit", r#""burst";r=0;t=1"#)];
    assert_eq!(parsed_pause(429, &floored), Some(1.0));
}

/// A message with one field of bytes.
fn message(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    assert!(length < 0x80);
    [&[number << 3 | 2, length], value].concat()
}

/// A `google.rpc.Status` whose details have this type and a duration as first field.
fn details(type_url: &str, duration: &[u8]) -> Vec<u8> {
    let any = [message(1, type_url.as_bytes()), message(2, &message(1, duration))].concat();
    // The code and an unknown field of eight bytes precede it.
    [
        &[1 << 3, 8, 9 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &message(3, &any),
    ]
    .concat()
}

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

fn grpc(status: &str, fields: &[(&str, &str)]) -> Option<f64> {
    let trailers = [("content-type", "application/grpc"), ("grpc-status", status)];
    parsed_pause(200, &[&trailers, fields].concat())
}

#[test]
fn pause_is_read_from_grpc_trailers() {
    // 5 s and 500 ms.
    let retry_info = STANDARD.encode(details(RETRY_INFO, &[8, 5, 16, 0x80, 0xca, 0xb5, 0xee, 1]));
    let with_details = ("grpc-status-details-bin", &*retry_info);
    for (status, expected) in [
        ("8", Some(5.5)),
        ("14", Some(5.5)),
        ("10", None),
        ("0", None),
        ("x", None),
    ] {
        assert_eq!(grpc(status, &[with_details]), expected, "{status}");
    }
    let pushback = |value| grpc("8", &[("grpc-retry-pushback-ms", value), with_details]);
    assert_eq!(pushback("250"), Some(0.25));
    assert_eq!(pushback("-1"), Some(5.5));
    let bare = retry_info.trim_end_matches('=');
    assert_eq!(grpc("8", &[("grpc-status-details-bin", bare)]), Some(5.5));
    assert_eq!(
        grpc("8", &[("ratelimit", r#""burst";r=0;t=5"#), ("retry-after", "5")]),
        None,
        "gRPC ignores HTTP fields"
    );
    let proxy = [("content-type", "text/html"), ("retry-after", "5")];
    assert_eq!(
        parsed_pause(503, &proxy),
        Some(5.0),
        "a proxy in front of the server"
    );
}

#[test]
fn details_without_retry_info_are_ignored() {
    let says = |details: &[u8]| {
        let details = STANDARD_NO_PAD.encode(details);
        grpc("8", &[("grpc-status-details-bin", &details)])
    };
    assert_eq!(says(&details(RETRY_INFO, &[8, 5])), Some(5.0));
    for (type_url, duration) in [
        ("type.googleapis.com/google.rpc.DebugInfo", &[8, 5][..]),
        (RETRY_INFO, &[]),
        // -5 s.
        (
            RETRY_INFO,
            &[8, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
        // A second of nanoseconds.
        (RETRY_INFO, &[16, 0x80, 0x94, 0xeb, 0xdc, 3]),
        // More than 64 bits.
        (
            RETRY_INFO,
            &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ),
    ] {
        assert_eq!(
            says(&details(type_url, duration)),
            None,
            "{type_url} {duration:?}"
        );
    }
    let whole = details(RETRY_INFO, &[8, 5]);
    for cut in 0..whole.len() {
        assert_eq!(says(&whole[..cut]), None, "{cut} bytes");
    }
}

const FIELDS: [&str; 11] = [
    "content-type",
    "date",
    "retry-after",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
];

/// Values that are nearly right, and arbitrary ones.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "0",
        "5",
        "8",
        "14",
        "-1",
        "limit=1, remaining=0, reset=",
        "\"a\";r=0;t=",
        "\"a\";r=",
        ";t=",
        ", ",
        "=",
        "application/grpc",
        "Tue, 14 Nov 2023 22:13:25 GMT",
        "99999999999999999999",
        "1700000060",
        "(",
        ")",
        ":",
        "\"",
    ]);
    let written = prop::collection::vec(words, 0..5).prop_map(|words| words.concat().into_bytes());
    let messages =
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| STANDARD.encode(bytes).into_bytes());
    let numbers = prop_oneof![Just(0), any::<u32>()].prop_map(|number| number.to_string().into_bytes());
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![written, messages, numbers, bytes]
}

/// Limits of a peer whose requests do not wait, at [`NOW`].
fn peer_limits() -> PeerLimits {
    let clock = ManualClock::starting_at(Timestamp::from_micros(NOW * 1_000_000));
    let policy = Policy::token_bucket("p").capacity(1).rate(1).build().unwrap();
    let limiter = Limiter::in_process().clock(&clock).build();
    let policy = PolicySource::Given(policy);
    PeerLimits::new(limiter, policy, OutboundLayer::DEFAULT_MAX_PAUSE)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_fields_yield_bounded_pause_or_none(
        status in prop_oneof![Just(429), 100_u16..1_000],
        arbitrary_fields in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), value()), 0..8),
    ) {
        let field = |(name, value): (&'static str, Vec<u8>)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(&value).ok()?))
        };
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        *response.headers_mut() = arbitrary_fields.into_iter().filter_map(field).collect();
        let parsed_pause = pause(response.status(), response.headers(), &own_time);
        prop_assert_ne!(parsed_pause, Some(Duration::ZERO));

        let (peer, key) = (peer_limits(), Key::from("k"));
        peer.observe_response(&key, &response);
        let layer_pause = match peer.try_decide(&key, || None) {
            Poll::Ready(Err(Rejection::Paused { retry_after })) => Some(retry_after),
            _ => None,
        };
        prop_assert_eq!(layer_pause.is_some(), parsed_pause.is_some());
        prop_assert!(layer_pause <= Some(OutboundLayer::DEFAULT_MAX_PAUSE));
    }

    #[test]
    fn longest_exhausted_quota_determines_pause(
        quotas in prop::collection::vec((0_u32..3, 0_u32..1_000_000), 1..6),
        is_one_line in any::<bool>(),
    ) {
        let members: Vec<_> = quotas.iter().map(|(r, t)| format!("\"p\";r={r};t={t};q=7")).collect();
        let lines = if is_one_line { vec![members.join(", ")] } else { members };
        let fields: Vec<_> = lines.iter().map(|line| ("ratelimit", &**line)).collect();
        let used_up = quotas.iter().filter(|(r, t)| *r == 0 && *t > 0);
        let longest = used_up.map(|(_, t)| f64::from(*t)).reduce(f64::max);
        prop_assert_eq!(parsed_pause(200, &fields), longest);
    }
}
