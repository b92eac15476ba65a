//! The faults from which a soak chooses.

use std::thread::sleep;
use std::time::Duration;

use limiter_testing::{Proxy, RedisServer};

use crate::bare::{self, Waiting};

/// A fault that ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
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

pub(super) const BLOWS: [Blow; 10] = [
    Blow::Kill,
    Blow::Stop,
    Blow::ClientPause,
    Blow::BlackHole,
    Blow::Slow,
    Blow::CutReplies,
    Blow::DropConnections,
    Blow::Refuse,
    Blow::ScriptFlush,
    Blow::OutOfMemory,
];

impl Blow {
    /// The number of times that the server loses its data.
    pub(super) fn losses(self) -> u64 {
        u64::from(self == Self::Kill)
    }

    /// Breaks things for so many milliseconds and mends them; the answer tells when the store is
    /// back.
    pub(super) fn strike(self, server: &RedisServer, proxy: &Proxy, millis: u64) -> Waiting {
        let last = || sleep(Duration::from_millis(millis));
        // Asked from before the mending on, so as not to miss the moment.
        let wait = || bare::until_writable(proxy.port());
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
