//! Servers watched by sentinels.

mod builder;

use std::time::Duration;

use crate::{RedisServer, RespValue, wait};

pub use builder::RedisSentinelBuilder;

const NAME: &str = "limiter-primary";
const SENTINELS: usize = 3;
const AGREE_LIMIT: Duration = Duration::from_secs(60);
const ATTEMPT_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 3;

/// A primary, its replicas and three sentinels on loopback; all live as long as this handle.
///
/// Two sentinels have to agree that the primary is down before a replica is promoted. A former
/// primary that is reachable becomes a replica about ten seconds later, and until then accepts
/// writes that will be lost; see [`await_replicas`](Self::await_replicas).
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts a primary with one replica and three sentinels, and waits until the sentinels know
    /// each other and both servers.
    ///
    /// # Panics
    /// As [`RedisServer::start`], or if the sentinels do not agree within a minute.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Prepares servers and sentinels with a custom configuration.
    #[must_use]
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder::new()
    }

    /// Returns the URLs of the sentinels, at which clients request the primary.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// Returns the URL of the primary for clients; its name replaces the host.
    #[must_use]
    pub fn primary_url(&self) -> String {
        format!("redis://{}@{NAME}/", crate::acl::LOGIN)
    }

    /// Returns the name of the primary in the sentinels' configuration.
    #[must_use]
    pub fn primary_name(&self) -> &'static str {
        NAME
    }

    /// Returns the sentinels, which may be paused and killed as any server.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the servers that are watched; the first was the primary at the start.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the primary, according to the first sentinel that replies.
    ///
    /// # Panics
    /// If no sentinel replies.
    #[must_use]
    #[track_caller]
    pub fn primary(&self) -> &RedisServer {
        self.sentinels
            .iter()
            .find_map(|sentinel| self.named_by(sentinel))
            .unwrap_or_else(|| panic!("no sentinel replies"))
    }

    /// Requests a failover from the sentinels; returns the promoted replica once all sentinels name
    /// it.
    ///
    /// Waits for the replicas first, because a sentinel also promotes a replica that is not
    /// synchronised yet.
    ///
    /// # Panics
    /// If there is no replica fit for it, or if that has not happened within a minute.
    #[track_caller]
    pub fn fail_over(&self) -> &RedisServer {
        self.await_replicas();
        let old = self.primary();
        for _ in 0..ATTEMPTS {
            // The sentinel rejects the request while it knows no suitable replica, as after another
            // failover.
            wait::poll(ATTEMPT_LIMIT, || {
                let accepts = |sentinel: &RedisServer| {
                    let reply = sentinel.query(&["SENTINEL", "FAILOVER", NAME]);
                    matches!(reply, Ok(RespValue::Status(_)))
                };
                self.sentinels.iter().any(accepts).then_some(())
            });
            if let Some(new) = wait::poll(ATTEMPT_LIMIT, || self.successor(old)) {
                return new;
            }
        }
        panic!("no replica took over; {}", self.shown());
    }

    /// Waits until every server that replies, except the primary, is a connected replica of it.
    ///
    /// # Panics
    /// If the condition is not met within a minute.
    #[track_caller]
    pub fn await_replicas(&self) {
        let followed = wait::poll(AGREE_LIMIT, || {
            let primary = self.primary();
            let settled = |server: &RedisServer| {
                server.port() == primary.port() || server.follows(primary) || server.query(&["PING"]).is_err()
            };
            self.servers.iter().all(settled).then_some(())
        });
        assert!(
            followed.is_some(),
            "not all servers follow the primary; {}",
            self.shown()
        );
    }

    /// Kills the primary, and returns it; see [`await_fail_over`](Self::await_fail_over).
    ///
    /// # Panics
    /// If no sentinel replies.
    #[track_caller]
    pub fn kill_primary(&self) -> &RedisServer {
        let primary = self.primary();
        primary.kill();
        primary
    }

    /// Waits until all sentinels that reply name another server than this one as the primary, and
    /// that server accepts writes; returns it.
    ///
    /// # Panics
    /// If the condition is not met within a minute.
    #[track_caller]
    pub fn await_fail_over(&self, old: &RedisServer) -> &RedisServer {
        wait::poll(AGREE_LIMIT, || self.successor(old))
            .unwrap_or_else(|| panic!("no replica took over from port {}; {}", old.port(), self.shown()))
    }

    /// Returns the successor of `old` after the failover has finished.
    fn successor(&self, old: &RedisServer) -> Option<&RedisServer> {
        let views = self.sentinels.iter().filter_map(|sentinel| {
            let about = sentinel.query(&["SENTINEL", "MASTER", NAME]).ok()?;
            Some((self.named_by(sentinel)?, field(&about, "flags")? == "master"))
        });
        let mut agreed = None;
        for (named, steady) in views {
            let first: &RedisServer = agreed.get_or_insert(named);
            if !steady || named.port() == old.port() || named.port() != first.port() {
                return None;
            }
        }
        agreed.filter(|new| new.is_primary())
    }

    fn named_by(&self, sentinel: &RedisServer) -> Option<&RedisServer> {
        let reply = sentinel
            .query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])
            .ok()?;
        match &reply {
            RespValue::Array(address) => {
                let port = address.get(1)?.integer();
                self.servers
                    .iter()
                    .find(|server| i64::from(server.port()) == port)
            }
            _ => None,
        }
    }

    /// Returns whether a sentinel knows all other sentinels and the roles of all servers.
    fn is_known_to(&self, sentinel: &RedisServer) -> Option<()> {
        let primary = sentinel.query(&["SENTINEL", "MASTER", NAME]).ok()?;
        let replicas = sentinel.query(&["SENTINEL", "REPLICAS", NAME]).ok()?;
        let followed = |replica: &RespValue| {
            field(replica, "flags").as_deref() == Some("slave")
                && field(replica, "master-link-status").as_deref() == Some("ok")
        };
        let known = field(&primary, "flags")? == "master"
            && field(&primary, "num-other-sentinels")? == (SENTINELS - 1).to_string()
            && replicas.items().len() + 1 == self.servers.len()
            && replicas.items().iter().all(followed);
        let quorum = sentinel.query(&["SENTINEL", "CKQUORUM", NAME]).ok()?;
        (known && matches!(quorum, RespValue::Status(_))).then_some(())
    }

    fn shown(&self) -> String {
        let logs: Vec<_> = self.sentinels.iter().map(RedisServer::log_tail).collect();
        format!("the logs of the sentinels end:\n{}", logs.join("\n\n"))
    }
}

/// Returns a value of a reply that lists names and values in turn.
fn field(reply: &RespValue, name: &str) -> Option<String> {
    let RespValue::Array(items) = reply else {
        return None;
    };
    let texts: Vec<String> = items.iter().map(RespValue::text).collect();
    let at = texts.iter().step_by(2).position(|text| text == name)?;
    texts.get(at * 2 + 1).cloned()
}
