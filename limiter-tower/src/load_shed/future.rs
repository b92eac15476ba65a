//! The future of a load shedding service.
//!
//! A request is in flight from its admission to the end of its response body. The future holds the
//! guard during the call and moves it into the body; for a shed request it contains the response.
//!
//! Invariant: a failed or dropped call drops the guard. Tests:
//! `requests_in_flight_never_exceed_bound` and `request_counts_until_its_response_ends` in
//! `tests/load/shed.rs`.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::in_flight_counter::InFlightGuard;
use crate::load_shed::body::LoadShedBody;
use crate::rate::future::{LayerResponse, ended};
use crate::responses::body::{ResponseBody, known_length};

pin_project! {
    /// The future of [`LoadShed`](crate::LoadShed).
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the request's admission.
    #[must_use = "futures do nothing unless polled"]
    pub struct LoadShedFuture<F> {
        #[pin]
        state: ShedState<F>,
    }
}

pin_project! {
    #[project = ShedStateProj]
    enum ShedState<F> {
        Calling { #[pin] inner: F, place: Option<InFlightGuard>, length: Option<u64> },
        Answered { response: Option<LayerResponse> },
    }
}

impl<F> LoadShedFuture<F> {
    pub(super) fn calling(inner: F, place: Option<InFlightGuard>) -> Self {
        Self {
            state: ShedState::Calling {
                inner,
                place,
                length: None,
            },
        }
    }

    /// Sets the number of bytes that the server sends, if the request determines it.
    pub(super) fn with_length(mut self, of_body: Option<u64>) -> Self {
        if let ShedState::Calling { length, .. } = &mut self.state {
            *length = of_body;
        }
        self
    }

    pub(super) fn with_response(response: LayerResponse) -> Self {
        let response = Some(response);
        Self {
            state: ShedState::Answered { response },
        }
    }
}

impl<F, B, E> Future for LoadShedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<LoadShedBody<B, InFlightGuard>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(match self.project().state.project() {
            ShedStateProj::Calling { inner, place, length } => {
                let response = ready!(inner.poll(context));
                // A failed call drops the guard.
                let place = place.take();
                let response = response?;
                let length = length.or_else(|| known_length(&response));
                LoadShedBody::respond(response.map(ResponseBody::inner), place, length)
            }
            ShedStateProj::Answered { response } => {
                let Some(response) = response.take() else { ended() };
                response.map(|body| LoadShedBody::free(body.with_any_inner()))
            }
        }))
    }
}

impl<F> fmt::Debug for LoadShedFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ShedState::Calling { .. } => "Calling",
            ShedState::Answered { .. } => "Answered",
        };
        f.debug_struct("LoadShedFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
