//! The details of a rejection for gRPC clients: a `google.rpc.Status` in protobuf's wire format.
//!
//! <https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto>,
//! <https://protobuf.dev/programming-guides/encoding/>,
//! <https://github.com/grpc/proposal/blob/master/A6-client-retries.md>, "Pushback".
//!
//! The four messages contain only strings and numbers and are only written, so a protobuf library
//! would be larger than this encoder.
//!
//! Tests: below, and `limiter-tower/tests/grpc/details.rs`.

use std::time::Duration;

use crate::decision::Rejection;

/// The default domain of `ErrorInfo`.
pub const DEFAULT_DOMAIN: &str = "limiter";

/// The name of the metadata with [`retry_pushback_ms`].
pub const RETRY_PUSHBACK_MS: &str = "grpc-retry-pushback-ms";

/// Returns the serialized `google.rpc.Status`: `RetryInfo` if a retry helps and its time is known,
/// `QuotaFailure` if a quota is used up or too small, and `ErrorInfo` with a reason that programs
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

/// Returns the number of milliseconds after which the client library may retry by itself; -1 if a
/// retry never helps, or not within the maximum of 24 days. `None` if the time is unknown.
#[must_use]
pub fn retry_pushback_ms(rejection: &Rejection) -> Option<i32> {
    match rejection {
        Rejection::NeverFits { .. } | Rejection::Forbidden { .. } => Some(-1),
        _ => rejection
            .retry_after()
            .map(|after| whole_millis(after).unwrap_or(-1)),
    }
}

/// Rounds up, so that no client is early.
fn whole_millis(span: Duration) -> Option<i32> {
    i32::try_from(span.as_micros().div_ceil(1_000)).ok()
}

fn reason(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Limited(_) | Rejection::TimedOut { .. } => "RATE_LIMIT_EXCEEDED",
        Rejection::Paused { .. } => "PEER_ASKED_FOR_PAUSE",
        Rejection::NeverFits { .. } => "COST_EXCEEDS_QUOTA",
        Rejection::Unavailable { .. } => "RATE_LIMITER_UNAVAILABLE",
        Rejection::Forbidden { .. } => "KEY_DENIED",
        Rejection::NotConfigured { .. } => "RATE_LIMIT_NOT_CONFIGURED",
        Rejection::Config(_) => "RATE_LIMITER_MISCONFIGURED",
    }
}

/// Returns one violation for each policy that denies.
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

/// A message in wire format.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// Writes an integer, unless it has the default value.
    fn number(&mut self, field: u8, value: i64) {
        if value != 0 {
            self.0.push(field << 3);
            // A varint of 64 bits encodes fields of any width.
            self.varint(u64::from_ne_bytes(value.to_ne_bytes()));
        }
    }

    fn text(&mut self, field: u8, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// Writes a length-delimited field: a text or an embedded message.
    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a `google.protobuf.Any` in the third field.
    fn detail(&mut self, kind: &str, detail: Self) {
        let mut any = Self::default();
        any.text(1, &format!("type.googleapis.com/{kind}"));
        any.bytes(2, &detail.0);
        self.bytes(3, &any.0);
    }

    /// Writes groups of seven bits, the lowest first; all but the last have the eighth bit set.
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
    fn numbers_and_texts_follow_the_wire_format() {
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
    fn pushback_is_rounded_up_and_in_range() {
        assert_eq!(whole_millis(Duration::from_micros(1)), Some(1));
        assert_eq!(whole_millis(Duration::from_micros(60_000_001)), Some(60_001));
        assert_eq!(whole_millis(Duration::from_secs(30 * 86_400)), None);
        let forbidden = Rejection::Forbidden {
            policy: String::new(),
            decision: Box::new(Decision::without_query(Origin::KeyList, Timestamp::default())),
        };
        assert_eq!(retry_pushback_ms(&forbidden), Some(-1));
        let unknown = Rejection::NotConfigured {
            policy: String::new(),
        };
        assert_eq!(retry_pushback_ms(&unknown), None);
    }
}
