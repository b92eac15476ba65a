//! The service: finds the key, and has the request admitted.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::admit::Admission;
use super::body::PermitBody;
use super::future::{Call, InFlightFuture};
use crate::afterwards::Afterwards;
use crate::decide::Question;
use crate::guarded::Guarded;
use crate::key::{Answer, ExtractKey};
use crate::respond::Protocol;
use crate::wait;

/// A service of whose requests so many are in flight at once. Made by [`InFlightLayer`](crate::InFlightLayer). `S` is the inner
/// service, `E` finds the key.
pub type InFlight<S, E> = Guarded<S, Admission, E>;

impl<S, E, B, ResBody> Service<Request<B>> for InFlight<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    E: ExtractKey<B>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<PermitBody<ResBody>>;
    type Error = S::Error;
    type Future = InFlightFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let question = match self.guard.key.extract(&request) {
            Answer::Key(key) => Question::Key(key),
            Answer::Terms(terms) => Question::Terms(terms),
            Answer::Skip => {
                return InFlightFuture::calling(self.inner.call(request), Afterwards::default(), None);
            }
            Answer::Refuse(refusal) => {
                self.release_ready();
                let responder = self.guard.limits.limits.responder();
                let response = responder.refused(refusal, &Protocol::of(&request));
                return InFlightFuture::answered(Box::new(response));
            }
            Answer::Later(later) => return InFlightFuture::extracting(later, self.take_call(request)),
        };
        match self.guard.limits.at_once(&question) {
            Poll::Ready(Ok(admitted)) => {
                let (afterwards, held) = self.guard.limits.admitted(admitted, &mut request);
                InFlightFuture::calling(self.inner.call(request), afterwards, held)
            }
            Poll::Ready(Err(rejection)) => {
                // What it has reserved to be ready, others may need.
                self.release_ready();
                let responder = self.guard.limits.limits.responder();
                let response = responder.rejected(rejection, &Protocol::of(&request));
                InFlightFuture::answered(Box::new(response))
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let admitting = self.guard.limits.later(question.into_owned(), bound);
                InFlightFuture::admitting(admitting, self.take_call(request))
            }
        }
    }
}

impl<S: Clone, E> InFlight<S, E> {
    fn take_call<B>(&mut self, request: Request<B>) -> Call<S, B> {
        Call {
            admission: Arc::clone(&self.guard.limits),
            ready: self.take_ready(),
            request,
        }
    }
}
