//! A timer that a thread wakes, for runtimes whose time is paused.

use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;

/// Ends at a real time, by a thread that sleeps until then.
pub(super) struct Timer {
    fired: oneshot::Receiver<()>,
    /// Ends the thread when it is dropped.
    _cancel: Sender<()>,
}

impl Timer {
    pub(super) fn new(until: Instant) -> Self {
        let (timer, thread) = Self::with_thread(until);
        // Without a thread the timer fires at once: the caller checks the time again, as after
        // every wake-up.
        let _ = thread::Builder::new().name("limiter-timer".into()).spawn(thread);
        timer
    }

    /// Keeps the runtime's paused time from advancing for as long as the timer exists.
    pub(super) fn holding_time(until: Instant) -> Self {
        let (timer, thread) = Self::with_thread(until);
        drop(tokio::task::spawn_blocking(thread));
        timer
    }

    fn with_thread(until: Instant) -> (Self, impl FnOnce() + Send + 'static) {
        let (fire, fired) = oneshot::channel();
        let (cancel, cancelled): (Sender<()>, Receiver<()>) = mpsc::channel();
        let thread = move || {
            // No message is ever sent: the receive ends at the time, or when the timer is dropped.
            let _ = cancelled.recv_timeout(until.saturating_duration_since(Instant::now()));
            let _ = fire.send(());
        };
        let timer = Self {
            fired,
            _cancel: cancel,
        };
        (timer, thread)
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Without a thread the sender is dropped unused.
        let _ = ready!(Pin::new(&mut self.fired).poll(context));
        Poll::Ready(())
    }
}
