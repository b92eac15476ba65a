//! Starts a primary, its replicas and the sentinels.

use std::fs;
use std::time::Duration;

use super::{AGREE_LIMIT, NAME, RedisSentinel, SENTINELS};
use crate::{RedisServer, acl, binary, wait};

const QUORUM: usize = 2;
const CONFIG: &str = "sentinel.conf";

/// The time that the sentinels allow for a failover; they try again after twice this time.
const FAILOVER_TIMEOUT_MS: u64 = 3_000;

/// Prepares a [`RedisSentinel`].
#[derive(Debug, Clone)]
pub struct RedisSentinelBuilder {
    replicas: usize,
    down_after: Duration,
    args: Vec<(String, String)>,
}

impl RedisSentinelBuilder {
    pub(super) fn new() -> Self {
        Self {
            replicas: 1,
            down_after: Duration::from_secs(1),
            args: Vec::new(),
        }
    }

    /// Sets the number of replicas of the primary; one by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Sets the silence after which a sentinel considers the primary down; one second by default.
    #[must_use]
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Adds a line of configuration to the primary and its replicas; none by default.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts servers and sentinels, and waits until the sentinels know them.
    ///
    /// # Panics
    /// As [`RedisSentinel::start`].
    #[must_use]
    pub fn start(self) -> RedisSentinel {
        let builder = || {
            let lines = self.args.iter();
            lines.fold(RedisServer::builder(), |server, (name, value)| {
                server.arg(name, value)
            })
        };
        let mut servers = vec![builder().start()];
        for _ in 0..self.replicas {
            if let Some(primary) = servers.first() {
                let replica = builder().replica_of(primary).start();
                servers.push(replica);
            }
        }
        let port = servers.first().map_or(0, RedisServer::port);
        let sentinels = (0..SENTINELS).map(|_| self.start_sentinel(port)).collect();
        let started = RedisSentinel { servers, sentinels };
        let known = wait::poll(AGREE_LIMIT, || {
            let all = started
                .sentinels
                .iter()
                .all(|sentinel| started.is_known_to(sentinel).is_some());
            all.then_some(())
        });
        assert!(
            known.is_some(),
            "the sentinels did not agree; {}",
            started.shown()
        );
        started
    }

    fn start_sentinel(&self, primary: u16) -> RedisServer {
        let program = binary::find().unwrap_or_else(|message| panic!("{message}"));
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("sentinel monitor {NAME} 127.0.0.1 {primary} {QUORUM}"),
            format!(
                "sentinel down-after-milliseconds {NAME} {}",
                self.down_after.as_millis()
            ),
            format!("sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}"),
            acl::of_sentinels(),
        ];
        // Named without its directory, in which the program is started; it is rewritten as things
        // change.
        RedisServer::spawn(&program, &[CONFIG, "--sentinel"], |dir| {
            let path = dir.join(CONFIG);
            if let Err(error) = fs::write(&path, lines.join("\n") + "\n") {
                panic!("{} cannot be written: {error}", path.display());
            }
        })
    }
}
