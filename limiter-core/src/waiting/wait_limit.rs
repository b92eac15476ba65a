//! How many calls may wait at once, where whoever has them wait bounds that.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Seats for calls that wait. Whoever asks the store has none; who has been denied, or stands behind another, needs one.
#[derive(Debug)]
pub struct WaitingRoom {
    seats: usize,
    taken: AtomicUsize,
}

impl WaitingRoom {
    /// One with so many seats.
    #[must_use]
    pub fn new(seats: usize) -> Self {
        Self {
            seats,
            taken: AtomicUsize::new(0),
        }
    }

    /// How many are taken.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A call's seat, which it may not have yet.
#[derive(Debug)]
pub(crate) enum Seat<'a> {
    /// None is needed.
    Unneeded,
    Wanted(&'a WaitingRoom),
    Taken(&'a WaitingRoom),
}

impl<'a> Seat<'a> {
    pub(crate) fn new(room: Option<&'a WaitingRoom>) -> Self {
        room.map_or(Self::Unneeded, Self::Wanted)
    }

    /// Takes it, if it is needed and not taken yet. `false` where none is left.
    pub(crate) fn take(&mut self) -> bool {
        if let Self::Wanted(room) = *self {
            let taken = room
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                    (taken < room.seats).then_some(taken + 1)
                });
            if taken.is_err() {
                return false;
            }
            *self = Self::Taken(room);
        }
        true
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Self::Taken(room) = self {
            room.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
