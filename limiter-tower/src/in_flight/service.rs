//! The service: finds the key, and has the request admitted.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::admit::Admission;
use super::future::{Call, InFlightFuture};
use crate::afterwards::Afterwards;
use crate::decide::Question;
use crate::held::HeldBody;
use crate::key::{Answer, ExtractKey};
use crate::respond::Protocol;
use crate::wait;

/// A service of whose requests so many are in flight at once. Made by [`InFlightLayer`](crate::InFlightLayer).
///
/// `S` is the inner service, `E` finds the key. Readiness and backpressure are those of the inner service, and the instance of it
/// that was found ready is the one that is called.
pub struct InFlight<S, E> {
    inner: S,
    admission: Arc<Admission>,
    key: Arc<E>,
}

impl<S, E> InFlight<S, E> {
    pub(super) fn new(inner: S, admission: Arc<Admission>, key: Arc<E>) -> Self {
        Self {
            inner,
            admission,
            key,
        }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, E, B, ResBody> Service<Request<B>> for InFlight<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    E: ExtractKey<B>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<HeldBody<ResBody>>;
    type Error = S::Error;
    type Future = InFlightFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let question = match self.key.extract(&request) {
            Answer::Key(key) => Question::Key(key),
            Answer::Terms(terms) => Question::Terms(terms),
            Answer::Skip => {
                return InFlightFuture::calling(self.inner.call(request), Afterwards::default(), None);
            }
            Answer::Refuse(refusal) => {
                drop(self.take_ready());
                let responder = self.admission.limits.responder();
                let response = responder.refused(refusal, &Protocol::of(&request));
                return InFlightFuture::answered(Box::new(response));
            }
            Answer::Later(later) => return InFlightFuture::extracting(later, self.take_call(request)),
        };
        match self.admission.at_once(&question) {
            Poll::Ready(Ok(admitted)) => {
                let (afterwards, held) = self.admission.admitted(admitted, &mut request);
                InFlightFuture::calling(self.inner.call(request), afterwards, held)
            }
            Poll::Ready(Err(rejection)) => {
                // What it has reserved to be ready, others may need.
                drop(self.take_ready());
                let responder = self.admission.limits.responder();
                let response = responder.rejected(rejection, &Protocol::of(&request));
                InFlightFuture::answered(Box::new(response))
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let admitting = self.admission.later(question.into_owned(), bound);
                InFlightFuture::admitting(admitting, self.take_call(request))
            }
        }
    }
}

impl<S: Clone, E> InFlight<S, E> {
    /// The inner service that was found ready. A clone stays behind, which is not.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    fn take_call<B>(&mut self, request: Request<B>) -> Call<S, B> {
        Call {
            admission: Arc::clone(&self.admission),
            ready: self.take_ready(),
            request,
        }
    }
}

impl<S: Clone, E> Clone for InFlight<S, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            admission: Arc::clone(&self.admission),
            key: Arc::clone(&self.key),
        }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for InFlight<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("inner", &self.inner)
            .field("admission", &self.admission)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, E> tonic::server::NamedService for InFlight<S, E> {
    const NAME: &'static str = S::NAME;
}
