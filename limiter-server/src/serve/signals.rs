//! The signals that reload the policies and end the process.

use std::io;

use tokio::signal::unix::{self, SignalKind};

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Read the policy file again.
    Reload,
    /// Shut down.
    End,
}

/// The handlers of SIGHUP, SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Signals {
    hangup: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: unix::signal(SignalKind::hangup())?,
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.terminate.recv() => Signal::End,
            _ = self.interrupt.recv() => Signal::End,
        }
    }
}
