//! Servers that follow another, and change places with it.

use std::io;
use std::time::Duration;

use super::{RedisServer, RedisServerBuilder};
use crate::resp::{self, BRIEFLY, PATIENTLY};
use crate::wait;

const SYNC_LIMIT: Duration = Duration::from_secs(30);

impl RedisServerBuilder {
    /// Makes the server a replica of another one; [`start`](Self::start) then returns after the
    /// synchronisation. Default: no primary.
    ///
    /// After a [`restart`](RedisServer::restart) it follows that server again, independent of its
    /// role before.
    #[must_use]
    pub fn replica_of(mut self, primary: &RedisServer) -> Self {
        let port = primary.port().to_string();
        self.args
            .extend(["--replicaof", "127.0.0.1", &port].map(str::to_owned));
        self.follows = true;
        self
    }
}

impl RedisServer {
    /// Makes a primary of a replica: it stops following and accepts writes.
    ///
    /// Other replicas of its former primary keep following that one.
    ///
    /// # Panics
    /// If the server does not reply.
    #[track_caller]
    pub fn promote(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Makes the server a replica of another one, with a copy of its data, and waits for the
    /// synchronisation.
    ///
    /// # Panics
    /// If one of the two does not reply, or if the replica is not synchronised within thirty
    /// seconds.
    #[track_caller]
    pub fn demote_to(&self, primary: &RedisServer) {
        self.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        self.wait_for_replication();
    }

    /// Waits until this replica has received all earlier writes of its primary.
    ///
    /// # Panics
    /// If this is no replica, or if it has not received the writes within thirty seconds.
    #[track_caller]
    pub fn wait_for_replication(&self) {
        let mut written = None;
        let in_step = wait::poll(SYNC_LIMIT, || {
            let here = Replication::of(self.port(), PATIENTLY).ok()?;
            assert!(
                here.is("role", "slave"),
                "the server on port {} is no replica",
                self.port()
            );
            if written.is_none() {
                let primary =
                    Replication::of(here.number("master_port")?.try_into().ok()?, PATIENTLY).ok()?;
                written = primary.number("master_repl_offset");
            }
            let caught_up = here.number("slave_repl_offset") >= written && written.is_some();
            // Also requires the link state, because the initial offset of a replica may belong to
            // another replication history.
            (caught_up && here.is("master_link_status", "up")).then_some(())
        });
        assert!(
            in_step.is_some(),
            "the replica on port {} was not synchronised; its log ends:\n{}",
            self.port(),
            self.log_tail()
        );
    }

    /// Returns whether this server is a reachable primary.
    pub(crate) fn is_primary(&self) -> bool {
        Replication::of(self.port(), BRIEFLY).is_ok_and(|seen| seen.is("role", "master"))
    }

    /// Returns whether this server is a connected replica of that primary.
    pub(crate) fn follows(&self, primary: &RedisServer) -> bool {
        Replication::of(self.port(), BRIEFLY).is_ok_and(|seen| {
            seen.number("master_port") == Some(primary.port().into()) && seen.is("master_link_status", "up")
        })
    }
}

/// The lines of `INFO replication`.
struct Replication(String);

impl Replication {
    fn of(port: u16, timeout: Duration) -> io::Result<Self> {
        Ok(Self(resp::call(port, &["INFO", "replication"], timeout)?.text()))
    }

    fn field(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
        self.0.lines().find(|line| value(line))?.get(name.len() + 1..)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.field(name) == Some(value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }
}
