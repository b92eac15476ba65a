//! A rejection as a gRPC status.

use std::sync::Arc;

use tonic::{Code, Status};

use crate::decision::Rejection;

/// The code of [`grpc_code`](Rejection::grpc_code) with [`client_message`](Rejection::client_message); the rejection
/// itself is the status's source.
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
        let mut status = Self::new(Code::from_i32(rejection.grpc_code()), rejection.client_message());
        status.set_source(Arc::new(rejection));
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use std::time::Duration;

    #[tokio::test]
    async fn every_rejection_has_its_code() {
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
