//! Reads the retry delay of a gRPC server from a response that consists of trailers only.
//!
//! The source is `grpc-retry-pushback-ms`
//! (<https://github.com/grpc/proposal/blob/master/A6-client-retries.md>), else the
//! `google.rpc.RetryInfo` in the details of the status. Trailers after messages arrive with the end
//! of the body, which is not parsed.
//!
//! Tests: `peer_quota/tests.rs` (`pause_is_read_from_grpc_trailers`,
//! `details_without_retry_info_are_ignored`), `tests/outbound/clients.rs`
//! (`tonic_client_respects_pushback_of_server`).

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName};

use super::protobuf::{Value, fields};
use super::{digits, only};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

/// Longer details are ignored: servers keep all trailers within 8 KiB.
const MAX_DETAILS_BYTES: usize = 16 * 1024;

/// The encoding of binary metadata in gRPC; a receiver has to accept values with and without
/// padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// With other codes, the delay applies to the one call, for example after a conflict.
pub(super) fn pause(headers: &HeaderMap) -> Option<Duration> {
    match digits(only(headers, &STATUS)?) {
        Some(RESOURCE_EXHAUSTED | UNAVAILABLE) => {}
        _ => return None,
    }
    // A negative pushback forbids the retry of this call, which is no pause of others.
    let pushback = only(headers, &PUSHBACK)
        .and_then(digits)
        .map(Duration::from_millis);
    let pause = pushback.or_else(|| retry_info(only(headers, &DETAILS)?))?;
    (!pause.is_zero()).then_some(pause)
}

/// `google.rpc.Status { code = 1, message = 2, repeated google.protobuf.Any details = 3 }`.
fn retry_info(details: &str) -> Option<Duration> {
    if details.len() > MAX_DETAILS_BYTES {
        return None;
    }
    let status = BASE64.decode(details).ok()?;
    fields(&status).find_map(|field| match field {
        (3, Value::Bytes(any)) => delay_in(any),
        _ => None,
    })
}

/// `google.protobuf.Any { type_url = 1, value = 2 }`, where that is a
/// `google.rpc.RetryInfo { google.protobuf.Duration retry_delay = 1 }`.
fn delay_in(any: &[u8]) -> Option<Duration> {
    let bytes = |message, field_number| {
        fields(message).find_map(move |field| match field {
            (number, Value::Bytes(bytes)) if number == field_number => Some(bytes),
            _ => None,
        })
    };
    let type_url = bytes(any, 1)?;
    let name = type_url.rsplit(|byte| *byte == b'/').next()?;
    if name != b"google.rpc.RetryInfo" {
        return None;
    }
    duration(bytes(bytes(any, 2)?, 1)?)
}

/// `google.protobuf.Duration { int64 seconds = 1, int32 nanos = 2 }`, if it is not negative.
fn duration(message: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in fields(message) {
        match field {
            (1, Value::Varint(value)) => seconds = value,
            (2, Value::Varint(value)) => nanos = value,
            _ => {}
        }
    }
    // A negative number fills all 64 bits.
    i64::try_from(seconds).ok()?;
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}
