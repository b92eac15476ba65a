//! Requests of a client, limited by its own policy and by the pauses of the peer.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends that way")]

#[path = "outbound/caller_timeout.rs"]
mod caller_timeout;
#[path = "outbound/clients.rs"]
mod clients;
#[path = "outbound/contract.rs"]
mod contract;
#[path = "outbound/pauses.rs"]
mod pauses;
#[cfg(unix)]
#[path = "outbound/redis.rs"]
mod redis;
mod support;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use limiter_core::ManualClock;
use limiter_core::{Rejection, Timestamp};
use limiter_tower::outbound::{self, BoxError};
use tokio::sync::Semaphore;
use tower::Service;

/// The reason for which a request was not sent.
fn rejection(answer: Result<Response<impl Sized>, BoxError>) -> Rejection {
    let Err(error) = answer else {
        panic!("the request was sent")
    };
    outbound::rejection(&*error).unwrap().clone()
}

/// A peer with configurable responses that records the time of each request.
#[derive(Clone, Debug)]
struct Peer {
    clock: ManualClock,
    script: Arc<Mutex<PeerScript>>,
}

#[derive(Debug, Default)]
struct PeerScript {
    status: StatusCode,
    fields: Vec<(&'static str, String)>,
    received_at: Vec<Timestamp>,
}

impl Peer {
    fn new(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clone(),
            script: Arc::default(),
        }
    }

    /// Sets the response to further requests.
    fn answers<const N: usize>(&self, status: u16, fields: [(&'static str, &str); N]) {
        let mut script = self.script.lock().unwrap();
        script.status = StatusCode::from_u16(status).unwrap();
        script.fields = fields.map(|(name, value)| (name, value.to_owned())).into();
    }

    /// The times of the requests.
    fn received_at(&self) -> Vec<Timestamp> {
        self.script.lock().unwrap().received_at.clone()
    }
}

impl Service<Request<String>> for Peer {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let mut script = self.script.lock().unwrap();
        script.received_at.push(self.clock.now());
        let mut response = Response::new(request.into_body());
        *response.status_mut() = script.status;
        for (name, value) in &script.fields {
            response.headers_mut().append(*name, value.parse().unwrap());
        }
        std::future::ready(Ok(response))
    }
}

/// A peer whose responses are held until the test releases them, in the order of their futures'
/// first polls.
#[derive(Clone)]
struct Slow(Peer, Arc<Semaphore>);

impl Slow {
    fn new(peer: &Peer) -> Self {
        Self(peer.clone(), Arc::new(Semaphore::new(0)))
    }

    fn let_through(&self) {
        self.1.add_permits(1);
    }
}

impl Service<Request<String>> for Slow {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let (answer, gate) = (self.0.call(request), Arc::clone(&self.1));
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            answer.await
        })
    }
}
