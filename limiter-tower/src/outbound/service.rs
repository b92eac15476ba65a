//! The service: asks whether a request may be sent, at once or later.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::error::{BoxError, Unsent};
use super::future::{Listening, OutboundFuture};
use super::peer::Peer;
use crate::key::{Answer, ExtractKey, Shared};

/// A client whose requests are limited. Made by [`OutboundLayer`](super::OutboundLayer).
///
/// `S` is the client, `E` finds the key. Readiness and backpressure are the client's, and the instance of it that was found
/// ready is the one that is called. Its responses are passed on as they are.
pub struct Outbound<S, E = Shared> {
    inner: S,
    peer: Arc<Peer>,
    key: Arc<E>,
}

impl<S, E> Outbound<S, E> {
    pub(super) fn new(inner: S, peer: Arc<Peer>, key: Arc<E>) -> Self {
        Self { inner, peer, key }
    }

    /// The client.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The client, to change it.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The client, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

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
        let unsent = match self.key.extract(&request) {
            Answer::Key(key) => match self.peer.at_once(&key) {
                Poll::Ready(Ok(decision)) => {
                    let listening = Listening::new(&self.peer, key.into_owned(), decision);
                    return OutboundFuture::calling(self.inner.call(request), Some(listening));
                }
                Poll::Ready(Err(rejection)) => Unsent::Rejected(rejection),
                Poll::Pending => {
                    let (peer, key) = (Arc::clone(&self.peer), key.into_owned());
                    return OutboundFuture::asking(peer, key, self.take_ready(), request);
                }
            },
            Answer::Skip => return OutboundFuture::calling(self.inner.call(request), None),
            Answer::Refuse(refusal) => Unsent::Refused(refusal),
            Answer::Later(later) => {
                let peer = Arc::clone(&self.peer);
                return OutboundFuture::extracting(peer, later, self.take_ready(), request);
            }
            Answer::Terms(_) => Unsent::terms(),
        };
        // What it has reserved to be ready, others may need.
        drop(self.take_ready());
        OutboundFuture::unsent(unsent.error_of(&request))
    }
}

impl<S: Clone, E> Outbound<S, E> {
    /// The client that was found ready. A clone stays behind, which is not.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S: Clone, E> Clone for Outbound<S, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            peer: Arc::clone(&self.peer),
            key: Arc::clone(&self.key),
        }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for Outbound<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("inner", &self.inner)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
