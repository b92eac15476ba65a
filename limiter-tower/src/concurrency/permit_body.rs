//! The response body that holds a request's permit.
//!
//! The permit must be free when the client can send its next request, or a sequential client would
//! be denied by its own previous request. A permit in this process is released before the last
//! frame is handed on. A permit in Redis is released there first: the body keeps its last frame, or
//! the end, until Redis has confirmed the release, since the next request may reach another
//! replica. The wait is bounded by the policy's deadline. Tests: `tests/load/sequential.rs`,
//! `tests/load/bodies.rs`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit_handle::{PermitHandle, Release};
use crate::responses::body::ResponseBody;

pin_project! {
    /// The body of a response whose request is in flight until the body has ended. It releases the
    /// permit with the last frame, at the length that the response states, with the trailers, with
    /// an error, or when it is dropped, whichever comes first. With Redis, the last frame and the
    /// end wait until the release is confirmed, at most for the policy's deadline.
    ///
    /// A body that has ended from the start, such as an empty one, holds nothing.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        body: ResponseBody<B>,
        permit: PermitState,
        // The bytes that the server still sends, if the response states its length.
        left: Option<u64>,
    }
}

#[derive(Debug)]
enum PermitState {
    /// The permit is released, or there was none.
    Free,
    PermitHandle(PermitHandle),
    /// The body has ended. The frame is its last one, if the end is not known from it.
    Releasing(Release, Option<Frame<Bytes>>),
}

impl<B> PermitBody<B> {
    /// Returns the permit, until it is released.
    pub fn held(&self) -> Option<&PermitHandle> {
        match &self.permit {
            PermitState::PermitHandle(permit) => Some(permit),
            PermitState::Free | PermitState::Releasing(..) => None,
        }
    }

    pub(super) fn new(body: ResponseBody<B>, permit: Option<PermitHandle>) -> Self {
        Self {
            body,
            permit: permit.map_or(PermitState::Free, PermitState::PermitHandle),
            left: None,
        }
    }

    /// Sets the length that the response states. A server does not poll a body beyond it.
    pub(super) fn with_length(self, length: Option<u64>) -> Self {
        Self { left: length, ..self }
    }
}

/// An empty body that holds nothing.
impl<B> Default for PermitBody<B> {
    fn default() -> Self {
        Self::new(ResponseBody::default(), None)
    }
}

#[cfg(feature = "axum")]
impl From<PermitBody<axum::body::Body>> for axum::body::Body {
    fn from(body: PermitBody<axum::body::Body>) -> Self {
        match body.permit {
            PermitState::Free => body.body.into(),
            PermitState::PermitHandle(_) | PermitState::Releasing(..) => Self::new(body),
        }
    }
}

#[cfg(feature = "tonic")]
impl From<PermitBody<tonic::body::Body>> for tonic::body::Body {
    fn from(body: PermitBody<tonic::body::Body>) -> Self {
        match body.permit {
            PermitState::Free => body.body.into(),
            PermitState::PermitHandle(_) | PermitState::Releasing(..) => Self::new(body),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for PermitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        loop {
            if let PermitState::Releasing(release, frame) = this.permit {
                ready!(Pin::new(release).poll(context));
                let frame = frame.take();
                *this.permit = PermitState::Free;
                return Poll::Ready(frame.map(Ok));
            }
            let polled = ready!(this.body.as_mut().poll_frame(context));
            if let (Some(left), Some(Ok(frame))) = (this.left.as_mut(), &polled) {
                let length = frame.data_ref().map_or(0, Bytes::len);
                *left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
            }
            let is_complete = *this.left == Some(0);
            let frame = match polled {
                // A server that detects the end from this frame may poll no further and keep the
                // body for a while.
                Some(Ok(frame)) if is_complete || frame.is_trailers() || this.body.is_end_stream() => {
                    Some(frame)
                }
                // The connection ends with the error, so no request follows on it, and the release
                // is not awaited.
                Some(Err(error)) => {
                    *this.permit = PermitState::Free;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
                None => None,
            };
            *this.permit = match std::mem::replace(this.permit, PermitState::Free) {
                PermitState::PermitHandle(permit) => match permit.release() {
                    Some(release) => PermitState::Releasing(release, frame),
                    None => return Poll::Ready(frame.map(Ok)),
                },
                PermitState::Free | PermitState::Releasing(..) => return Poll::Ready(frame.map(Ok)),
            };
        }
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self.permit, PermitState::Releasing(..)) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        if let PermitState::Releasing(_, Some(frame)) = &self.permit {
            if let Some(data) = frame.data_ref() {
                let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper.saturating_add(length));
                }
                hint.set_lower(hint.lower().saturating_add(length));
            }
        }
        hint
    }
}
