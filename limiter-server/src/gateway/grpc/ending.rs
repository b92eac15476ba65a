//! Ends calls that their clients keep open when the server ends.
//!
//! A stream of reflection lasts as long as its client wants, and a request can be incomplete for
//! any time. The bodies of requests therefore end soon after the end begins, and calls without a
//! status then end with UNAVAILABLE. Before that, services that know of the end send their last
//! messages.
//!
//! Tests: `tests/lifecycle.rs`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use http_body::Frame;
use tokio::sync::watch;
use tonic::Status;

/// The time for the last messages of the services.
const LAST_MESSAGES: Duration = Duration::from_millis(500);

type EndFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits until `end` is true, and then for the last messages.
fn after_end(mut end: watch::Receiver<bool>) -> EndFuture {
    Box::pin(async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
        tokio::time::sleep(LAST_MESSAGES).await;
    })
}

/// Awaits the response of a service, and ends the call soon after `end` is true.
pub(super) async fn until_end(
    response: impl Future<Output = Result<Response, Infallible>>,
    end: watch::Receiver<bool>,
) -> Result<Response, Infallible> {
    let mut ended = after_end(end);
    tokio::select! {
        biased;
        response = response => {
            let mut trailers = HeaderMap::new();
            // The message of the status is a valid header.
            let _ = unavailable().add_header(&mut trailers);
            let last = Some(trailers);
            Ok(response?.map(|body| Body::new(EndingBody { body: Some(body), ended, last })))
        }
        () = &mut ended => Ok(unavailable().into_http()),
    }
}

fn unavailable() -> Status {
    Status::unavailable("the server is shutting down")
}

/// A body that ends with the server, if it is not complete then.
pub(super) struct EndingBody<B> {
    /// `None` after the end.
    body: Option<B>,
    ended: EndFuture,
    /// The trailers of a body that ends with the server.
    last: Option<HeaderMap>,
}

impl<B> EndingBody<B> {
    /// Creates the body of a request.
    pub(super) fn new(body: B, end: watch::Receiver<bool>) -> Self {
        Self {
            body: Some(body),
            ended: after_end(end),
            last: None,
        }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for EndingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        ready!(self.ended.as_mut().poll(context));
        self.body = None;
        Poll::Ready(self.last.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}
