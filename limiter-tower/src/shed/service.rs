//! The service: finds the class, and takes a place or answers.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use limiter_core::__private::{RETRY_PUSHBACK_MS, whole_seconds};
use tower_service::Service;

use super::layer::Room;
use super::{Classify, Normal, Place, Priority, ShedFuture};
use crate::future::Own;
use crate::guarded::Guarded;
use crate::held::HeldBody;
use crate::key::Refusal;
use crate::respond::Protocol;

/// Stands in the extensions of the response to a request that was shed, for layers further out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overloaded {
    /// The request's class.
    pub priority: Priority,
}

/// A service of whose requests so many are in flight at once, and the less important shed first. Made by
/// [`ShedLayer`](crate::ShedLayer). `S` is the inner service, `C` says how much a request matters.
pub type Shed<S, C = Normal> = Guarded<S, Room, C>;

impl<S, C, B, ResBody> Service<Request<B>> for Shed<S, C>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    C: Classify<B>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<HeldBody<ResBody, Place>>;
    type Error = S::Error;
    type Future = ShedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let place = match self.guard.limits.class_of(&*self.guard.key, &request) {
            None => None,
            Some(class) => match self.guard.limits.enter(class) {
                Some(place) => Some(place),
                None => {
                    // What the inner service has reserved to be ready, others may need.
                    self.release_ready();
                    let protocol = Protocol::of(&request);
                    return ShedFuture::answered(self.guard.limits.overloaded(class, &protocol));
                }
            },
        };
        ShedFuture::calling(self.inner.call(request), place)
    }
}

impl Room {
    #[cold]
    fn overloaded(&self, priority: Priority, protocol: &Protocol) -> Own {
        tracing::debug!(?priority, "request shed; too many requests in flight");
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the service is overloaded");
        let mut response = self.responder.refused(refusal, protocol);
        if let Some(after) = self.retry_after {
            let (name, value) = match protocol {
                Protocol::Http => (header::RETRY_AFTER, HeaderValue::from(whole_seconds(after))),
                Protocol::Grpc { .. } => {
                    // What is too long to be told is told as the longest.
                    let millis = i32::try_from(after.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX);
                    (
                        HeaderName::from_static(RETRY_PUSHBACK_MS),
                        HeaderValue::from(millis),
                    )
                }
            };
            response.headers_mut().insert(name, value);
        }
        response.extensions_mut().insert(Overloaded { priority });
        Box::new(response)
    }
}
