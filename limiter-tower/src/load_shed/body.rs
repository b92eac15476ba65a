//! A response body that keeps its request in flight until the body has ended.
//!
//! A response occupies the process until its body is sent. The body holds the guard of its request
//! and drops it with the last frame, or at the length that the response states, because servers may
//! keep a body after its end. A body that has ended from the start takes no guard.
//!
//! Invariant: the guard is dropped exactly once, also after an error and for a dropped body
//! (`request_counts_until_its_response_ends` and `request_counts_until_its_last_byte` in
//! `tests/load/shed.rs`).

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::responses::body::ResponseBody;

pin_project! {
    /// The body of a response whose request is in flight until the body has ended. It drops its
    /// guard `H` with the last frame, at the length that the response states, with the trailers,
    /// with an error, or when the body is dropped, whichever comes first.
    ///
    /// A body that has ended from the start, such as an empty one, and the body of a response to
    /// HEAD have no guard.
    #[derive(Debug)]
    pub struct LoadShedBody<B, H> {
        #[pin]
        body: ResponseBody<B>,
        held: Option<H>,
        // The bytes that the server still sends, if their number is known.
        left: Option<u64>,
    }
}

impl<B, H> LoadShedBody<B, H> {
    /// Returns the guard, until the body has ended.
    pub fn held(&self) -> Option<&H> {
        self.held.as_ref()
    }

    pub(crate) fn free(body: ResponseBody<B>) -> Self {
        Self {
            body,
            held: None,
            left: None,
        }
    }
}

/// An empty body without a guard.
impl<B, H> Default for LoadShedBody<B, H> {
    fn default() -> Self {
        Self::free(ResponseBody::default())
    }
}

#[cfg(feature = "axum")]
impl<H: Send + 'static> From<LoadShedBody<axum::body::Body, H>> for axum::body::Body {
    fn from(body: LoadShedBody<axum::body::Body, H>) -> Self {
        match body.held {
            None => body.body.into(),
            Some(_) => Self::new(body),
        }
    }
}

#[cfg(feature = "tonic")]
impl<H: Send + 'static> From<LoadShedBody<tonic::body::Body, H>> for tonic::body::Body {
    fn from(body: LoadShedBody<tonic::body::Body, H>) -> Self {
        match body.held {
            None => body.body.into(),
            Some(_) => Self::new(body),
        }
    }
}

impl<B: Body<Data = Bytes>, H> LoadShedBody<B, H> {
    /// Moves the guard into the response's body, of which the server sends `length` bytes.
    pub(crate) fn respond(
        response: Response<ResponseBody<B>>,
        held: Option<H>,
        length: Option<u64>,
    ) -> Response<Self> {
        response.map(|body| {
            let held = held.filter(|_| length != Some(0) && !body.is_end_stream());
            Self {
                body,
                held,
                left: length,
            }
        })
    }
}

impl<B: Body<Data = Bytes>, H> Body for LoadShedBody<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(context);
        if let (Some(left), Poll::Ready(Some(Ok(frame)))) = (this.left.as_mut(), &polled) {
            let length = frame.data_ref().map_or(0, Bytes::len);
            *left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
        let is_complete = *this.left == Some(0);
        let has_ended = match &polled {
            // A server that detects the end may stop polling and keep the body for a while.
            Poll::Ready(Some(Ok(frame))) => is_complete || frame.is_trailers() || this.body.is_end_stream(),
            Poll::Ready(Some(Err(_)) | None) => true,
            Poll::Pending => false,
        };
        if has_ended {
            *this.held = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
