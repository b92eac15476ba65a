//! The service: decides whether a request may be sent, synchronously if possible.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::error::{BoxError, NotSent};
use super::future::{ObserveResponse, OutboundFuture};
use super::peer_limits::PeerLimits;
use crate::gate::{Gate, impl_service};
use crate::key::{Extraction, Global, KeyExtractor};
use crate::rate::wait;

/// A client whose requests are limited. Created by [`OutboundLayer`](super::OutboundLayer). `S` is
/// the client, `E` extracts the key. Responses are passed on unchanged.
pub struct Outbound<S, E = Global> {
    gate: Gate<S, PeerLimits, E>,
}

impl_service!(Outbound, PeerLimits);

impl<S, E, B, ResBody> Service<Request<B>> for Outbound<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>, Error: Into<BoxError>> + Clone,
    E: KeyExtractor<B>,
{
    type Response = Response<ResBody>;
    type Error = BoxError;
    type Future = OutboundFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.gate.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bound = || wait::timeout(request.headers());
        let unsent = match self.gate.shared.key.extract(&request) {
            Extraction::Key(key) => match self.gate.shared.config.try_decide(&key, bound) {
                Poll::Ready(Ok(decision)) => {
                    let listening =
                        ObserveResponse::new(&self.gate.shared.config, key.into_owned(), decision);
                    return OutboundFuture::calling(self.gate.inner.call(request), Some(listening));
                }
                Poll::Ready(Err(rejection)) => NotSent::Rejected(rejection),
                Poll::Pending => {
                    let (peer, key) = (Arc::clone(&self.gate.shared.config), key.into_owned());
                    return OutboundFuture::deciding(peer, key, self.gate.take_ready(), request);
                }
            },
            Extraction::Skip => return OutboundFuture::calling(self.gate.inner.call(request), None),
            Extraction::Reject(rejection) => NotSent::Refused(rejection),
            Extraction::Pending(pending) => {
                let peer = Arc::clone(&self.gate.shared.config);
                return OutboundFuture::extracting(peer, pending, self.gate.take_ready(), request);
            }
            Extraction::Limits(_) => NotSent::request_limits(),
        };
        // A ready instance may have reserved capacity that other calls need.
        self.gate.release_ready();
        OutboundFuture::unsent(unsent.error_of(&request))
    }
}
