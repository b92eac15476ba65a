//! The faults from which a soak chooses.

use std::thread::sleep;
use std::time::Duration;

use limiter_testing::{Proxy, RedisServer};

use crate::baseline::{self, Waiting};

/// A fault that ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RandomFault {
    Kill,
    Stop,
    ClientPause,
    BlackHole,
    Slow,
    CutReplies,
    DropConnections,
    Refuse,
    ScriptFlush,
    OutOfMemory,
}

pub(super) const RANDOM_FAULTS: [RandomFault; 10] = [
    RandomFault::Kill,
    RandomFault::Stop,
    RandomFault::ClientPause,
    RandomFault::BlackHole,
    RandomFault::Slow,
    RandomFault::CutReplies,
    RandomFault::DropConnections,
    RandomFault::Refuse,
    RandomFault::ScriptFlush,
    RandomFault::OutOfMemory,
];

impl RandomFault {
    /// Returns the number of times that the server loses its data.
    pub(super) fn losses(self) -> u64 {
        u64::from(self == Self::Kill)
    }

    /// Applies the fault for this time and removes it. The result waits for the recovery of the
    /// store.
    pub(super) fn apply(self, server: &RedisServer, proxy: &Proxy, millis: u64) -> Waiting {
        let last = || sleep(Duration::from_millis(millis));
        // Waits from before the removal of the fault, so that the recovery is not missed.
        let wait = || baseline::until_writable(proxy.port());
        match self {
            Self::Kill => {
                server.kill();
                last();
                let waiting = wait();
                server.restart();
                waiting
            }
            Self::Stop => {
                server.pause();
                last();
                let waiting = wait();
                server.resume();
                waiting
            }
            Self::ClientPause => {
                server.command(&["CLIENT", "PAUSE", &millis.to_string(), "ALL"]);
                wait()
            }
            Self::BlackHole => {
                proxy.set_black_hole(true);
                last();
                let waiting = wait();
                proxy.set_black_hole(false);
                waiting
            }
            Self::Slow => {
                // Beyond every deadline.
                proxy.set_delay(Duration::from_millis(80));
                last();
                proxy.set_delay(Duration::ZERO);
                wait()
            }
            Self::CutReplies => {
                proxy.cut_replies(5);
                last();
                proxy.cut_replies(0);
                wait()
            }
            Self::DropConnections => {
                proxy.drop_connections();
                wait()
            }
            Self::Refuse => {
                proxy.refuse(true);
                proxy.drop_connections();
                last();
                let waiting = wait();
                proxy.refuse(false);
                waiting
            }
            Self::ScriptFlush => {
                server.command(&["SCRIPT", "FLUSH"]);
                last();
                wait()
            }
            Self::OutOfMemory => {
                server.command(&["CONFIG", "SET", "maxmemory", "1"]);
                last();
                let waiting = wait();
                server.command(&["CONFIG", "SET", "maxmemory", "0"]);
                waiting
            }
        }
    }
}
