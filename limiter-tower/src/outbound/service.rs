//! The service: asks whether a request may be sent, at once or later.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::error::{BoxError, Unsent};
use super::future::{Listening, OutboundFuture};
use super::peer::Peer;
use crate::guarded::Guarded;
use crate::key::{Answer, ExtractKey, Shared};
use crate::wait;

/// A client whose requests are limited. Made by [`OutboundLayer`](super::OutboundLayer). `S` is the client, `E` finds the key. Its
/// responses are passed on as they are.
pub type Outbound<S, E = Shared> = Guarded<S, Peer, E>;

impl<S, E, B, ResBody> Service<Request<B>> for Outbound<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>, Error: Into<BoxError>> + Clone,
    E: ExtractKey<B>,
{
    type Response = Response<ResBody>;
    type Error = BoxError;
    type Future = OutboundFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bound = || wait::timeout(request.headers());
        let unsent = match self.guard.key.extract(&request) {
            Answer::Key(key) => match self.guard.limits.at_once(&key, bound) {
                Poll::Ready(Ok(decision)) => {
                    let listening = Listening::new(&self.guard.limits, key.into_owned(), decision);
                    return OutboundFuture::calling(self.inner.call(request), Some(listening));
                }
                Poll::Ready(Err(rejection)) => Unsent::Rejected(rejection),
                Poll::Pending => {
                    let (peer, key) = (Arc::clone(&self.guard.limits), key.into_owned());
                    return OutboundFuture::asking(peer, key, self.take_ready(), request);
                }
            },
            Answer::Skip => return OutboundFuture::calling(self.inner.call(request), None),
            Answer::Refuse(refusal) => Unsent::Refused(refusal),
            Answer::Later(later) => {
                let peer = Arc::clone(&self.guard.limits);
                return OutboundFuture::extracting(peer, later, self.take_ready(), request);
            }
            Answer::Terms(_) => Unsent::terms(),
        };
        // What it has reserved to be ready, others may need.
        self.release_ready();
        OutboundFuture::unsent(unsent.error_of(&request))
    }
}
