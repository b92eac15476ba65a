//! Converts a rejection into an axum response.
//!
//! A handler can return `Rejection` as its error: the response has the status of `http_status`, a
//! problem document as its body, and `Retry-After` if the retry time is known. The rejection is
//! kept in the extensions, so that an outer layer can log it. Tests: below.

use axum_core::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::decision::Rejection;

/// A response with the status of [`http_status`](Rejection::http_status), with `Retry-After` if the
/// time is known, and with [`problem_json`](Rejection::problem_json) as its body. The response's
/// extensions contain the rejection, for a layer that logs it or builds another response.
///
/// A handler can return `Rejection` as its error without further code:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use axum_core::response::IntoResponse;
/// use limiter_core::{Limiter, Policy, Rejection};
///
/// async fn send(limits: &Limiter, policy: &Policy) -> Result<&'static str, Rejection> {
///     limits.check(policy, "ann").await?.require()?;
///     Ok("sent")
/// }
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::sliding_window("send").limit(1).window("1m").build()?;
/// assert_eq!(send(&limits, &policy).await.into_response().status(), 200);
/// assert_eq!(send(&limits, &policy).await.into_response().status(), 429);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = self.problem_json().into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::PROBLEM_JSON));
        // Every status of the table is valid.
        *response.status_mut() =
            StatusCode::from_u16(self.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = self.retry_after_seconds() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::responses::axum::*;

    #[tokio::test]
    async fn limited_handler_returns_429_with_retry_after() {
        let limits = Limiter::in_process().build();
        let policy = Policy::sliding_window("send")
            .limit(1)
            .window("1m")
            .build()
            .unwrap();
        let handler = async || -> Result<&'static str, Rejection> {
            limits.check(&policy, "ann").await?.require()?;
            Ok("sent")
        };
        assert_eq!(handler().await.into_response().status(), StatusCode::OK);

        let denied = handler().await.into_response();
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(denied.headers()[header::RETRY_AFTER], "60");
        assert_eq!(denied.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert!(
            denied
                .extensions()
                .get::<Rejection>()
                .is_some_and(Rejection::is_limited)
        );
    }

    #[test]
    fn unknown_retry_time_is_not_sent() {
        let unknown = Rejection::NotConfigured {
            policy: "search".into(),
        }
        .into_response();
        assert_eq!(unknown.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!unknown.headers().contains_key(header::RETRY_AFTER));
    }
}
