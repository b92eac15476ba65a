//! Converts a rejection into a gRPC status.

use std::sync::Arc;

use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::decision::Rejection;
use crate::responses::details::{DEFAULT_DOMAIN, RETRY_PUSHBACK_MS, grpc_status_details, retry_pushback_ms};

/// A status with the code of [`grpc_code`](Rejection::grpc_code) and the message of
/// [`client_message`](Rejection::client_message). Its source is the rejection.
///
/// Its details are messages of `google/rpc/error_details.proto`: `RetryInfo` with the exact time,
/// if a retry helps and the time is known; `QuotaFailure`, in which each `quota_id` is the name of
/// a denying policy; and `ErrorInfo` with the domain `limiter` and the reason `RATE_LIMIT_EXCEEDED`
/// if a limit is reached, or `COST_EXCEEDS_QUOTA`, `RATE_LIMITER_UNAVAILABLE`, `KEY_DENIED`,
/// `RATE_LIMIT_NOT_CONFIGURED`, `RATE_LIMITER_MISCONFIGURED`, or, for a pause that a client layer
/// follows, `PEER_ASKED_FOR_PAUSE`. The metadata `grpc-retry-pushback-ms` sets the time of
/// automatic retries, or disables them with -1.
///
/// ```
/// use limiter_core::{Limiter, Policy, Rejection};
///
/// async fn greet(limits: &Limiter, policy: &Policy) -> Result<tonic::Response<String>, tonic::Status> {
///     limits.check(policy, "ann").await?.require()?;
///     Ok(tonic::Response::new("hello".to_owned()))
/// }
/// ```
impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        let mut metadata = MetadataMap::new();
        if let Some(millis) = retry_pushback_ms(&rejection) {
            metadata.insert(RETRY_PUSHBACK_MS, millis.into());
        }
        let mut status = Self::with_details_and_metadata(
            Code::from_i32(rejection.grpc_code()),
            rejection.client_message(),
            grpc_status_details(&rejection, DEFAULT_DOMAIN).into(),
            metadata,
        );
        status.set_source(Arc::new(rejection));
        status
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::responses::tonic::*;

    #[tokio::test]
    async fn each_rejection_has_its_code() {
        let limits = Limiter::in_process().build();
        let policy = Policy::sliding_window("send")
            .limit(1)
            .window("1m")
            .build()
            .unwrap();
        let answer = async |cost: i64| -> Result<(), Status> {
            limits.check(&policy, "ann").cost(cost).await?.require()?;
            Ok(())
        };
        assert!(answer(1).await.is_ok());

        let limited = answer(1).await.unwrap_err();
        assert_eq!(limited.code(), Code::ResourceExhausted);
        assert_eq!(limited.message(), "rate limit reached, retry after 60 seconds");
        assert!(std::error::Error::source(&limited).is_some_and(|source| source.is::<Rejection>()));

        assert_eq!(answer(2).await.unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!(answer(-1).await.unwrap_err().code(), Code::Internal);
        limits.shutdown(Duration::ZERO).await;
        assert_eq!(answer(1).await.unwrap_err().code(), Code::Unavailable);
    }
}
