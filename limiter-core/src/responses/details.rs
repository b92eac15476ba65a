//! What a rejection says to a gRPC client beside code and message: a `google.rpc.Status` with
//! details, in protobuf's wire format.
//!
//! <https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto>,
//! <https://protobuf.dev/programming-guides/encoding/>,
//! <https://github.com/grpc/proposal/blob/master/A6-client-retries.md>, "Pushback".
//!
//! These are four messages of strings and numbers that are written and never read, for which a
//! library with derive macros would be more than they are.

use std::time::Duration;

use crate::decision::Rejection;

/// The domain of `ErrorInfo` where nobody says another.
pub const DEFAULT_DOMAIN: &str = "limiter";

/// The name of the metadata with [`retry_pushback_ms`].
pub const RETRY_PUSHBACK_MS: &str = "grpc-retry-pushback-ms";

/// The serialized `google.rpc.Status`: `RetryInfo` where a retry helps and the time is known,
/// `QuotaFailure` where a quota is used up or too small, and `ErrorInfo`, whose reason a program
/// can match.
#[must_use]
pub fn grpc_status_details(rejection: &Rejection, domain: &str) -> Vec<u8> {
    let mut status = Message::default();
    status.number(1, i64::from(rejection.grpc_code()));
    status.text(2, &rejection.client_message());

    let mut info = Message::default();
    info.text(1, reason(rejection));
    info.text(2, domain);
    status.detail("google.rpc.ErrorInfo", info);

    let violated = violations(rejection);
    if !violated.0.is_empty() {
        status.detail("google.rpc.QuotaFailure", violated);
    }
    if let Some(after) = rejection.retry_after() {
        let mut delay = Message::default();
        delay.number(1, i64::try_from(after.as_secs()).unwrap_or(i64::MAX));
        delay.number(2, i64::from(after.subsec_nanos()));
        let mut retry = Message::default();
        retry.bytes(1, &delay.0);
        status.detail("google.rpc.RetryInfo", retry);
    }
    status.0
}

/// After how many milliseconds the client library may retry by itself; -1 where that never helps,
/// or not within the 24 days that it can be told. `None` where nobody knows.
#[must_use]
pub fn retry_pushback_ms(rejection: &Rejection) -> Option<i32> {
    match rejection {
        Rejection::NeverFits { .. } | Rejection::Forbidden { .. } => Some(-1),
        _ => rejection
            .retry_after()
            .map(|after| whole_millis(after).unwrap_or(-1)),
    }
}

/// Rounded up, so that nobody is early.
fn whole_millis(span: Duration) -> Option<i32> {
    i32::try_from(span.as_micros().div_ceil(1_000)).ok()
}

fn reason(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Limited(_) | Rejection::TimedOut { .. } => "RATE_LIMIT_EXCEEDED",
        Rejection::Paused { .. } => "PEER_ASKED_FOR_PAUSE",
        Rejection::NeverFits { .. } => "COST_EXCEEDS_QUOTA",
        Rejection::Unavailable(_) => "RATE_LIMITER_UNAVAILABLE",
        Rejection::Forbidden { .. } => "KEY_DENIED",
        Rejection::NotConfigured { .. } => "RATE_LIMIT_NOT_CONFIGURED",
        Rejection::Config(_) => "RATE_LIMITER_MISCONFIGURED",
    }
}

/// One violation for each policy that denies.
fn violations(rejection: &Rejection) -> Message {
    let mut failure = Message::default();
    for policy in rejection.violated() {
        let mut violation = Message::default();
        violation.text(2, &rejection.client_message());
        violation.text(5, policy.name());
        violation.number(7, i64::try_from(policy.quota().whole()).unwrap_or(i64::MAX));
        failure.bytes(1, &violation.0);
    }
    failure
}

/// A message as it is written.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// A whole number, where it is not the default.
    fn number(&mut self, field: u8, value: i64) {
        if value != 0 {
            self.0.push(field << 3);
            // As 64 bits, however short the field is.
            self.varint(u64::from_ne_bytes(value.to_ne_bytes()));
        }
    }

    fn text(&mut self, field: u8, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// What has a length: texts, and messages within messages.
    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A `google.protobuf.Any` in the third field.
    fn detail(&mut self, kind: &str, detail: Self) {
        let mut any = Self::default();
        any.text(1, &format!("type.googleapis.com/{kind}"));
        any.bytes(2, &detail.0);
        self.bytes(3, &any.0);
    }

    /// Seven bits at a time, the lowest first, each but the last with the eighth set.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

#[cfg(test)]
mod tests {
    use crate::decision::{Decision, Origin};
    use crate::responses::details::*;
    use crate::units::Timestamp;

    #[test]
    fn numbers_and_texts_are_written_as_protobuf_says() {
        let mut message = Message::default();
        message.number(1, 150);
        message.number(2, 0);
        message.text(2, "testing");
        // The examples of the specification.
        assert_eq!(message.0, b"\x08\x96\x01\x12\x07testing");

        let mut negative = Message::default();
        negative.number(1, -2);
        assert_eq!(
            negative.0,
            [8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
        );
    }

    #[test]
    fn a_pushback_is_never_early_and_never_beyond_its_range() {
        assert_eq!(whole_millis(Duration::from_micros(1)), Some(1));
        assert_eq!(whole_millis(Duration::from_micros(60_000_001)), Some(60_001));
        assert_eq!(whole_millis(Duration::from_secs(30 * 86_400)), None);
        let forbidden = Rejection::Forbidden {
            policy: String::new(),
            decision: Box::new(Decision::unasked(Origin::KeyList, Timestamp::default())),
        };
        assert_eq!(retry_pushback_ms(&forbidden), Some(-1));
        let unknown = Rejection::NotConfigured {
            policy: String::new(),
        };
        assert_eq!(retry_pushback_ms(&unknown), None);
    }
}
