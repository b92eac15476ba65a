//! The body of a response: the inner service's body, or the layer's own text.
//!
//! A layer responds itself to a denied request, but it cannot create a body of the inner service's
//! type. `ResponseBody` is either of both; an inner body can have a meter, which counts its bytes
//! and settles the cost of the request when the body ends or is dropped.
//!
//! Invariant: size hints, errors and the end of the stream are those of the inner body. Tests:
//! `tests/layers.rs` with bodies of axum, tonic and tower-http, `tests/decisions/settlement.rs` for
//! the meter.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::settlement::Meter;

pin_project! {
    /// The body of a limited service's response: the inner service's body, or the text of a denial.
    ///
    /// The inner body only has to yield [`Bytes`], so that the layer works with any service: there
    /// is no common way to construct axum's and tonic's bodies from a text.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = BodyKindProj]
    #[derive(Debug)]
    enum BodyKind<B> {
        // The inner body is unboxed and rare parts are boxed: for a body that is itself a box, as
        // those of axum and tonic, the type is one word larger and as cheap to move.
        Inner { #[pin] body: B, meter: Option<Box<Meter>> },
        Own { text: Box<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(crate) fn inner(body: B) -> Self {
        Self {
            kind: BodyKind::Inner { body, meter: None },
        }
    }

    pub(crate) fn metered(body: B, meter: Meter) -> Self {
        Self {
            kind: BodyKind::Inner {
                body,
                meter: Some(Box::new(meter)),
            },
        }
    }

    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self {
            kind: BodyKind::Own {
                text: Box::new(text.into()),
            },
        }
    }
}

/// An empty body. Layers such as tower-http's `CorsLayer` and `TimeoutLayer` create one for the
/// responses they produce.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::text(Bytes::new())
    }
}

impl<B> ResponseBody<B> {
    /// Returns the inner body, if nothing observes it; else `Err(self)`.
    #[cfg(any(feature = "axum", feature = "tonic"))]
    fn try_into_inner(self) -> Result<B, Self> {
        match self.kind {
            BodyKind::Inner { body, meter: None } => Ok(body),
            kind => Err(Self { kind }),
        }
    }
}

#[cfg(feature = "axum")]
impl From<ResponseBody<axum::body::Body>> for axum::body::Body {
    fn from(body: ResponseBody<axum::body::Body>) -> Self {
        match body.try_into_inner() {
            Ok(inner) => inner,
            Err(body) => Self::new(body),
        }
    }
}

#[cfg(feature = "tonic")]
impl From<ResponseBody<tonic::body::Body>> for tonic::body::Body {
    fn from(body: ResponseBody<tonic::body::Body>) -> Self {
        match body.try_into_inner() {
            Ok(inner) => inner,
            Err(body) => Self::new(body),
        }
    }
}

impl ResponseBody<Infallible> {
    /// Converts a body of this crate to one for any inner body type.
    pub(crate) fn with_any_inner<B>(self) -> ResponseBody<B> {
        match self.kind {
            BodyKind::Inner { body, .. } => match body {},
            BodyKind::Own { text } => ResponseBody::text(*text),
        }
    }
}

/// Returns the number of bytes that the server sends of a response, if it is known. A server states
/// the exact size of a body as its length, and may not poll the body after these bytes.
pub(crate) fn known_length<B: Body>(response: &Response<B>) -> Option<u64> {
    let stated = response.headers().get(header::CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse().ok());
    // A body of zero bytes that has not ended may have trailers.
    let exact = || response.body().size_hint().exact().filter(|length| *length > 0);
    stated.or_else(exact)
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            BodyKindProj::Inner { body, meter } => {
                let polled = body.poll_frame(context);
                let Some(meter) = meter else { return polled };
                match &polled {
                    Poll::Ready(Some(Ok(frame))) => {
                        meter.add_bytes(frame.data_ref().map_or(0, Bytes::len));
                    }
                    Poll::Ready(Some(Err(_)) | None) => meter.end(),
                    Poll::Pending => {}
                }
                polled
            }
            BodyKindProj::Own { text } if text.is_empty() => Poll::Ready(None),
            BodyKindProj::Own { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut **text))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.is_end_stream(),
            BodyKind::Own { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.size_hint(),
            // No text is longer than 2^64 bytes.
            BodyKind::Own { text } => SizeHint::with_exact(text.len().try_into().unwrap_or(u64::MAX)),
        }
    }
}
