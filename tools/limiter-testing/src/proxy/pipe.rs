//! Data in transit in one direction of a connection.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Pieces in the order of their arrival, each with the moment at which it is due.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<(Instant, Piece)>,
    closed: bool,
}

/// The result of one read of a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    /// The sender will send no more.
    End,
}

impl Pipe {
    pub(super) fn push(&self, due: Instant, piece: Piece) {
        self.state().pieces.push_back((due, piece));
        self.changed.notify_one();
    }

    /// Returns the next piece, once it is due; `None` once the pipe is closed.
    pub(super) fn pop(&self) -> Option<Piece> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            let left = state
                .pieces
                .front()
                .map(|(due, _)| due.saturating_duration_since(Instant::now()));
            state = match left {
                Some(left) if left.is_zero() => return state.pieces.pop_front().map(|(_, piece)| piece),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Wakes the reader and discards the data in transit.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn earlier_time_does_not_overtake() {
        let pipe = Pipe::default();
        let now = Instant::now();
        pipe.push(now + Duration::from_millis(20), Piece::Bytes(vec![1]));
        pipe.push(now, Piece::End);
        assert_eq!(pipe.pop(), Some(Piece::Bytes(vec![1])));
        assert!(now.elapsed() >= Duration::from_millis(20));
        assert_eq!(pipe.pop(), Some(Piece::End));
    }

    #[test]
    fn close_ends_a_long_wait() {
        let pipe = Pipe::default();
        pipe.push(Instant::now() + Duration::from_secs(3_600), Piece::End);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pipe.pop());
            pipe.close();
            assert!(waiting.join().is_ok_and(|piece| piece.is_none()));
        });
    }
}
