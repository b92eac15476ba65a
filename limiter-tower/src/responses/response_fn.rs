//! A response that the application builds.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use limiter_core::Rejection;

use super::grpc;
use super::protocol::Protocol;

type BuildResponse = dyn Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + Send + Sync;

/// Builds a response from the default response.
pub(crate) struct ResponseFn(Box<BuildResponse>);

impl ResponseFn {
    pub(crate) fn new<F, T>(form: F) -> Self
    where
        F: Fn(&Rejection, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        Self(Box::new(move |rejection, response| {
            form(rejection, response).map(Into::into)
        }))
    }

    /// Calls the function. Headers that a gRPC response requires are restored if the function
    /// removes them.
    pub(super) fn apply(
        &self,
        rejection: &Rejection,
        response: Response<Bytes>,
        protocol: &Protocol,
    ) -> Response<Bytes> {
        let Protocol::Grpc { .. } = protocol else {
            return (self.0)(rejection, response);
        };
        let needed = response.headers().clone();
        let mut answer = (self.0)(rejection, response);
        *answer.status_mut() = StatusCode::OK;
        answer.body_mut().clear();
        // The length of the body, which is not sent.
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        answer.headers_mut().remove(header::CONTENT_ENCODING);
        for (name, value) in &needed {
            if !answer.headers().contains_key(name) || grpc::is_essential(name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
        answer
    }
}

impl fmt::Debug for ResponseFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFn")
    }
}
