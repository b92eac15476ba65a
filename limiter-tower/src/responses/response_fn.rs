//! ResponseConfig that a program forms itself.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use limiter_core::Rejection;

use super::grpc;
use super::protocol::Protocol;

type Form = dyn Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + Send + Sync;

/// What forms an answer of the one that would be given.
pub(crate) struct ResponseFn(Box<Form>);

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

    /// The answer. What makes a gRPC response one is put back if it is lost: its clients understand
    /// nothing else.
    pub(super) fn answer(
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
        // Of the body that is not sent.
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
