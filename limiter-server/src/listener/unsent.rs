//! Ends HTTP/2 connections whose peers do not accept responses.
//!
//! A peer that opens no flow-control window keeps each response of its streams in memory, and can
//! keep the connection open by answers to pings. Each chunk of a response is counted from its
//! creation until the transport has released it. Time is divided into intervals; a connection ends
//! if a chunk is older than one whole interval.
//!
//! Tests: below, and `tests/listeners.rs`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};

/// The number of intervals that are counted separately: the current one, the one before, and older
/// ones, which end the connection before their counts are reused. A power of two, so that the
/// number of an interval may overflow.
const INTERVALS: usize = 4;

/// The chunks of one connection that were not sent, by the interval of their creation.
#[derive(Debug, Default)]
pub(super) struct UnsentChunks {
    interval: AtomicUsize,
    counts: [AtomicUsize; INTERVALS],
}

impl UnsentChunks {
    /// Begins the next interval. Returns whether a chunk has existed for a whole interval.
    pub(super) fn begin_interval(&self) -> bool {
        let ended = self.interval.fetch_add(1, Ordering::Relaxed);
        // The interval before the ended one.
        self.count_of(ended.wrapping_sub(1)).load(Ordering::Relaxed) > 0
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
    fn count_of(&self, interval: usize) -> &AtomicUsize {
        &self.counts[interval % INTERVALS]
    }
}

/// A chunk until it is sent.
struct UnsentChunk {
    bytes: Bytes,
    interval: usize,
    unsent: Arc<UnsentChunks>,
}

impl UnsentChunk {
    fn new(bytes: Bytes, unsent: &Arc<UnsentChunks>) -> Self {
        let interval = unsent.interval.load(Ordering::Relaxed);
        unsent.count_of(interval).fetch_add(1, Ordering::Relaxed);
        Self {
            bytes,
            interval,
            unsent: unsent.clone(),
        }
    }
}

impl AsRef<[u8]> for UnsentChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnsentChunk {
    fn drop(&mut self) {
        self.unsent
            .count_of(self.interval)
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response. On HTTP/2 its chunks are counted.
#[derive(Debug)]
pub(super) struct CountedBody {
    body: Body,
    unsent: Option<Arc<UnsentChunks>>,
}

impl CountedBody {
    pub(super) fn new(body: Body, unsent: Option<Arc<UnsentChunks>>) -> Self {
        Self { body, unsent }
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Some(unsent) = &self.unsent else {
            return polled;
        };
        polled.map_ok(|frame| frame.map_data(|bytes| Bytes::from_owner(UnsentChunk::new(bytes, unsent))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn chunk_is_overdue_after_a_whole_interval() {
        let unsent = Arc::new(UnsentChunks::default());
        let mut body = CountedBody::new(Body::from("text"), Some(unsent.clone()));
        let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(chunk, "text");
        assert!(
            !unsent.begin_interval(),
            "the interval of the chunk has not ended"
        );
        assert!(unsent.begin_interval());
        drop(chunk);
        assert!(!unsent.begin_interval());
    }

    #[tokio::test]
    async fn sent_chunks_are_never_overdue() {
        let unsent = Arc::new(UnsentChunks::default());
        for _ in 0..20 {
            let body = CountedBody::new(Body::from("text"), Some(unsent.clone()));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "text");
            assert!(!unsent.begin_interval());
        }
    }
}
