//! The representation of a rejection in HTTP and gRPC. One table for every conversion.
//!
//! The statuses, the text for clients and the whole seconds of `Retry-After` are defined here, and
//! the submodules convert them for axum, tonic, problem documents and OpenAPI.
//!
//! Invariants: `Retry-After` is rounded up and never 0; and the text for clients contains neither
//! the configuration nor an internal cause. Tests: below, and those of limiter-tower.

#[cfg(feature = "axum")]
pub(crate) mod axum;
pub(crate) mod details;
#[cfg(feature = "utoipa")]
mod openapi;
pub(crate) mod problem;
#[cfg(feature = "tonic")]
pub(crate) mod tonic;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, Rejection};

/// The numbers of gRPC status codes.
mod grpc {
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
}

/// Representation for clients:
///
/// | rejection | HTTP | gRPC | `Retry-After` |
/// |---|---|---|---|
/// | [`Limited`](Rejection::Limited) | 429 | 8 RESOURCE_EXHAUSTED | if the decision contains it |
/// | [`TimedOut`](Rejection::TimedOut) | 429 | 8 RESOURCE_EXHAUSTED | if the last decision contains it |
/// | [`Paused`](Rejection::Paused) | 429 | 8 RESOURCE_EXHAUSTED | the rest of the pause |
/// | [`NeverFits`](Rejection::NeverFits) | 429 | 8 RESOURCE_EXHAUSTED | never: a retry does not help |
/// | [`Unavailable`](Rejection::Unavailable) | 503 | 14 UNAVAILABLE | never: the time is unknown |
/// | [`Forbidden`](Rejection::Forbidden) | 403 | 7 PERMISSION_DENIED | never: a retry does not help |
/// | [`NotConfigured`](Rejection::NotConfigured) | 500 | 9 FAILED_PRECONDITION | never |
/// | [`Config`](Rejection::Config) | 500 | 13 INTERNAL | never |
impl Rejection {
    /// Returns the HTTP status of the rejection.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        self.statuses().0
    }

    /// Returns the number of the gRPC status of the rejection.
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        self.statuses().1
    }

    /// Returns the value of a `Retry-After` header: [`retry_after`](Self::retry_after) in whole
    /// seconds, rounded up, never 0.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after().map(whole_seconds)
    }

    /// Returns whether a concurrency limit denies.
    fn is_of_concurrency(&self) -> bool {
        let denied_by = self.decision().and_then(Decision::denied_by);
        denied_by.is_some_and(|limit| limit.policy().is_concurrency())
    }

    /// Returns a sentence for the client, which is also the rejection's `Display`. It contains
    /// neither the configuration nor an internal cause; [`diagnostic`](Self::diagnostic) contains
    /// them, for logs.
    #[must_use]
    pub fn client_message(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Forbidden { .. } => "the request is not permitted",
            _ if self.is_of_concurrency() => "too many requests at once",
            Self::Limited(_) | Self::TimedOut { .. } | Self::Paused { .. } => {
                return match self.retry_after_seconds() {
                    Some(1) => Cow::Borrowed("rate limit reached, retry after 1 second"),
                    Some(seconds) => Cow::Owned(format!("rate limit reached, retry after {seconds} seconds")),
                    None => Cow::Borrowed("rate limit reached"),
                };
            }
            Self::NeverFits { .. } => "the request costs more than is ever admitted",
            Self::Unavailable { .. } => "the rate limiter is unavailable",
            Self::NotConfigured { .. } => "no rate limit is configured for the request",
            Self::Config(_) => "the rate limiter is misconfigured",
        })
    }

    fn statuses(&self) -> (u16, i32) {
        match self {
            Self::Limited(_) | Self::TimedOut { .. } | Self::Paused { .. } | Self::NeverFits { .. } => {
                (429, grpc::RESOURCE_EXHAUSTED)
            }
            Self::Unavailable { .. } => (503, grpc::UNAVAILABLE),
            Self::Forbidden { .. } => (403, grpc::PERMISSION_DENIED),
            Self::NotConfigured { .. } => (500, grpc::FAILED_PRECONDITION),
            Self::Config(_) => (500, grpc::INTERNAL),
        }
    }
}

/// The [`client_message`](Rejection::client_message): programs put this text into bodies, so it
/// contains neither the configuration nor an internal cause. [`diagnostic`](Rejection::diagnostic)
/// contains them.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client_message())
    }
}

/// Rounds up to whole seconds, so that a client that obeys is never early. Never returns 0, which
/// would permit an immediate retry.
#[must_use]
pub fn whole_seconds(span: Duration) -> u64 {
    span.as_secs()
        .saturating_add(u64::from(span.subsec_nanos() > 0))
        .max(1)
}

#[cfg(test)]
mod tests {
    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::responses::*;

    #[test]
    fn seconds_are_rounded_up_and_never_zero() {
        let rounded = |micros| whole_seconds(Duration::from_micros(micros));
        assert_eq!(rounded(0), 1);
        assert_eq!(rounded(1), 1);
        assert_eq!(rounded(1_000_000), 1);
        assert_eq!(rounded(1_000_001), 2);
        assert_eq!(rounded(59_000_001), 60);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[tokio::test]
    async fn concurrency_denial_has_no_retry_time() {
        let limits = Limiter::in_process().build();
        let export = Policy::concurrency("export").max(1).build().unwrap();
        let held = limits.acquire_concurrency(&export, "ann").await.unwrap();
        let denied = limits.acquire_concurrency(&export, "ann").await.unwrap_err();
        assert_eq!(denied.retry_after_seconds(), None);
        assert_eq!(denied.client_message(), "too many requests at once");
        assert_eq!((denied.http_status(), denied.grpc_code()), (429, 8));
        assert_eq!(details::retry_pushback_ms(&denied), None);
        let details = details::grpc_status_details(&denied, "d");
        assert!(!String::from_utf8_lossy(&details).contains("RetryInfo"));
        drop(held);
    }

    #[test]
    fn pause_has_retry_time() {
        let paused = Rejection::Paused {
            retry_after: Duration::from_millis(4_001),
        };
        assert_eq!((paused.http_status(), paused.grpc_code()), (429, 8));
        assert_eq!(
            paused.client_message(),
            "rate limit reached, retry after 5 seconds"
        );
        assert_eq!(paused.retry_after(), Some(Duration::from_millis(4_001)));
        assert!(paused.is_limited() && paused.decision().is_none());
    }
}
