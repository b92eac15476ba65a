//! A request body that must arrive in time and within the memory for all bodies.
//!
//! Slow clients must neither keep a request forever nor fill the memory. The body charges each
//! frame to a counter that all listeners share, and fails if the counter is full or the read
//! timeout ends. The timer starts at the first read that finds the body incomplete, so most bodies
//! need no timer.
//!
//! Invariant: the bytes of a body are released when the body is dropped, also after an error.
//! Tests: `tests/attacks.rs`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tonic::Status;
use tonic::codegen::{Bytes, StdError};

use crate::gateway::admission::HeldBytes;

pin_project! {
    /// A request body with a deadline. Its bytes count towards a limit until it is dropped. The
    /// time begins when the body is not complete at the first read: most bodies arrive with the
    /// headers and need no timer.
    #[derive(Debug)]
    pub(crate) struct LimitedBody<B> {
        #[pin]
        inner: B,
        #[pin]
        deadline: Option<Sleep>,
        timeout: Duration,
        held: HeldBytes,
    }
}

/// The reason why a body did not arrive.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The read timeout ended.
    TooSlow,
    /// Too many bytes of other bodies are buffered.
    NoMemory,
    /// The connection failed.
    Connection(StdError),
}

impl<B> LimitedBody<B> {
    pub(super) fn new(inner: B, timeout: Duration, held: HeldBytes) -> Self {
        Self {
            inner,
            deadline: None,
            timeout,
            held,
        }
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut this = self.project();
        match this.inner.poll_frame(cx) {
            Poll::Pending => {}
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(BodyError::Connection(error.into()))));
            }
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if !this.held.take(length) {
                    metrics::counter!("limiter_server_rejected_calls_total", "reason" => "memory")
                        .increment(1);
                    return Poll::Ready(Some(Err(BodyError::NoMemory)));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
        }
        if this.deadline.is_none() {
            this.deadline.set(Some(tokio::time::sleep(*this.timeout)));
        }
        match this.deadline.as_pin_mut().map(|deadline| deadline.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Some(Err(BodyError::TooSlow))),
            _ => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSlow => f.write_str("the body did not arrive within the read timeout"),
            Self::NoMemory => f.write_str("the server buffers too many request bodies; retry after a pause"),
            Self::Connection(error) => write!(f, "the body did not arrive: {error}"),
        }
    }
}

impl std::error::Error for BodyError {}

impl From<BodyError> for Status {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooSlow => Self::deadline_exceeded(error.to_string()),
            BodyError::NoMemory => Self::unavailable(error.to_string()),
            BodyError::Connection(error) => Self::from_error(error),
        }
    }
}
