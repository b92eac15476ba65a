//! Waiting for permits, bounded in time and in number.
//!
//! Requests that wait occupy memory, and a response after the client's timeout is useless.
//! [`WaitConfig`] contains the timeout and the queue bound, which all clones of a layer share;
//! [`timeout`] parses the `grpc-timeout` of a request. The limiter applies the shorter timeout.
//!
//! Invariant: a client can shorten its wait but not extend it (`client_timeout_never_extends_wait`
//! in `tests/contract/hostile.rs`). Further tests: below, and `tests/decisions/waiting.rs`.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use limiter_core::__private::{LayerWait, WaitLimit};

/// The wait settings of a layer: the timeout and the queue bound.
#[derive(Clone, Debug)]
pub(crate) struct WaitConfig {
    /// `None`: the setting of the policies.
    timeout: Option<Duration>,
    wait_limit: Arc<WaitLimit>,
}

impl WaitConfig {
    pub(crate) const MAX_WAITING: usize = 1_000;

    pub(crate) fn set_up_to(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    pub(crate) fn set_max_waiting(&mut self, requests: usize) {
        self.wait_limit = Arc::new(WaitLimit::new(requests));
    }

    /// Returns the wait of a request, in a layer whose requests refund no permits.
    pub(crate) fn for_request(&self) -> LayerWait<'_> {
        LayerWait {
            timeout: self.timeout,
            wait_limit: &self.wait_limit,
            expects_refunds: false,
        }
    }
}

impl Default for WaitConfig {
    fn default() -> Self {
        Self {
            timeout: None,
            wait_limit: Arc::new(WaitLimit::new(Self::MAX_WAITING)),
        }
    }
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the timeout that a gRPC client states in `grpc-timeout`. A malformed value is ignored.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get(GRPC_TIMEOUT)
        .and_then(|value| parse(value.as_bytes()))
}

/// `Timeout → TimeoutValue TimeoutUnit`: at most eight digits, and one of `H M S m u n`.
///
/// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, "Requests".
fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits
        .iter()
        .fold(0, |amount: u64, digit| amount * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3_600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_has_at_most_eight_digits_and_one_unit() {
        let millis = |millis| Some(Duration::from_millis(millis));
        for (text, expected) in [
            ("1H", millis(3_600_000)),
            ("2M", millis(120_000)),
            ("3S", millis(3_000)),
            ("40m", millis(40)),
            ("5000u", millis(5)),
            ("6000000n", millis(6)),
            ("0S", millis(0)),
            ("00000007S", millis(7_000)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
        for malformed in [
            "",
            "S",
            "1",
            "123456789S",
            "-1S",
            "+1S",
            "1.5S",
            " 1S",
            "1S ",
            "1 S",
            "1s",
            "1h",
            "1SS",
            "1\u{b5}",
        ] {
            assert_eq!(parse(malformed.as_bytes()), None, "{malformed}");
        }
    }
}
