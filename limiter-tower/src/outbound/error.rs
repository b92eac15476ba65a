//! The errors of requests that are not sent.
//!
//! An outbound service fails with errors of its inner service and with its own: a [`Rejection`] or
//! a [`KeyRejection`], or, for a gRPC request with the feature `tonic`, a `tonic::Status` whose
//! source is the rejection. [`rejection`] searches the sources of any error.
//!
//! Invariant: a rejection can be found behind the conversions of clients
//! (`tests/outbound/clients.rs`).

use std::error::Error;
use std::fmt;

use http::Request;
use limiter_core::Rejection;

use crate::key::KeyRejection;

/// The error of an outbound service: the inner service's error, or the reason why a request was not
/// sent. It is tower's `BoxError`.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Finds the reason why a request was not sent: the [`Rejection`] in an error or in its sources,
/// such as a `tonic::Status` or the error of another layer.
///
/// ```
/// use limiter_core::{ConfigError, Rejection};
/// use limiter_tower::outbound;
///
/// let error: outbound::BoxError = Rejection::Config(ConfigError::AlreadyInstalled).into();
/// assert!(matches!(outbound::rejection(&*error), Some(Rejection::Config(_))));
/// assert!(outbound::rejection(&std::io::Error::other("connection reset")).is_none());
/// ```
#[must_use]
pub fn rejection<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Rejection> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(rejection) = error.downcast_ref() {
            return Some(rejection);
        }
        cause = error.source();
    }
    None
}

impl fmt::Display for KeyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl Error for KeyRejection {}

/// The reason for which a request was not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    Rejected(Rejection),
    Refused(KeyRejection),
}

impl NotSent {
    /// Request limits name their own policies, but an outbound layer has exactly one.
    #[cold]
    pub(super) fn request_limits() -> Self {
        Self::Refused(KeyRejection::new(
            http::StatusCode::INTERNAL_SERVER_ERROR,
            "an outbound layer takes a key without request limits; set the policy of the layer",
        ))
    }

    /// A tonic client converts every error to a status, and preserves errors that are a status
    /// already.
    #[cfg_attr(
        not(feature = "tonic"),
        expect(unused_variables, reason = "they all fail alike")
    )]
    pub(super) fn error_of<B>(self, request: &Request<B>) -> BoxError {
        #[cfg(feature = "tonic")]
        if let crate::responses::Protocol::Grpc { .. } = crate::responses::Protocol::from_request(request) {
            return self.into_status().into();
        }
        match self {
            Self::Rejected(rejection) => rejection.into(),
            Self::Refused(rejection) => rejection.into(),
        }
    }

    #[cfg(feature = "tonic")]
    fn into_status(self) -> tonic::Status {
        match self {
            Self::Rejected(rejection) => rejection.into(),
            Self::Refused(rejection) => {
                let code = tonic::Code::from_i32(crate::responses::grpc::code(rejection.status()));
                let mut status = tonic::Status::new(code, rejection.message());
                status.set_source(std::sync::Arc::new(rejection));
                status
            }
        }
    }
}
