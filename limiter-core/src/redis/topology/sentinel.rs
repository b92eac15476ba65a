//! Discovery of the primary through Redis Sentinel.
//!
//! Each new connection is dialled to the address that most sentinels report, and its watcher polls
//! the sentinels while the connection is open. Polling is necessary because an old primary keeps
//! replying for up to ten seconds after a failover, and only the sentinels know the new one.
//!
//! Invariant: a server is used only after it has confirmed that it is a primary. Tests:
//! `tests/sentinel.rs` (`server_without_primary_role_is_not_used`,
//! `announced_failover_is_followed_without_gap`).

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bb8_redis::redis;
use bb8_redis::redis::{ErrorKind, ProtocolVersion, RedisError, Value};
use tokio::task::JoinSet;

use crate::error::ConfigError;
use crate::redis::client::connection::Connection;
use crate::redis::client::connection::Health;
use crate::redis::client::dial;
use crate::redis::client::dial::DIAL_TIMEOUT;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::tls::Certificates;
use crate::redis::secret_url::SecretUrl;
use crate::redis::topology::slots::Address;
use crate::support::jitter::with_jitter;
use crate::support::real_time::{sleep, timeout, timeout_at};

/// Upper bound of the wait for all sentinels.
const QUERY_TIMEOUT: Duration = DIAL_TIMEOUT.saturating_mul(2);
/// Additional time for the others after the replies of a majority.
const GRACE: Duration = Duration::from_millis(100);
/// Interval at which the sentinels are polled for the current primary.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The sentinels and the primary that they monitor.
pub(crate) struct Sentinel {
    sentinels: Vec<Endpoint>,
    /// Settings of the primary; the host is its name.
    primary: Endpoint,
    name: String,
}

/// Replies of the sentinels.
#[derive(Default)]
struct Votes {
    /// Number of replies.
    number: usize,
    /// Reported addresses, each with the number of sentinels that report it.
    named: Vec<(Address, usize)>,
    /// True if a sentinel does not know the name of the primary.
    unknown: bool,
    failure: Option<RedisError>,
}

impl Sentinel {
    pub(crate) fn new(
        sentinels: &[SecretUrl],
        primary: &SecretUrl,
        certificates: &Certificates,
    ) -> Result<Self, ConfigError> {
        if sentinels.is_empty() {
            return Err(ConfigError::Missing {
                field: "a URL of a sentinel",
            });
        }
        let endpoint = Endpoint::parse(primary, certificates)?;
        let Some(named) = endpoint.address() else {
            let expected = "the primary's name in place of a host, such as redis://name/0";
            return Err(primary.invalid(expected));
        };
        let sentinels = sentinels.iter().map(|url| {
            let mut sentinel = Endpoint::parse(url, certificates)?;
            // A connection for one query gains nothing from RESP3, which may need a permission.
            sentinel.login = sentinel.login.set_protocol(ProtocolVersion::RESP2).set_db(0);
            Ok(sentinel)
        });
        Ok(Self {
            sentinels: sentinels.collect::<Result<_, ConfigError>>()?,
            name: named.0.clone(),
            primary: endpoint,
        })
    }

    /// Dials the address that most sentinels report, then the other reported ones, until a server
    /// confirms that it is a primary. The replies of a majority suffice, so that a dead sentinel
    /// causes no delay. A minority is accepted only after the timeout of the others, since the
    /// nearest sentinel may be partitioned off.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<Connection, RedisError> {
        let majority = self.majority();
        let votes = self
            .query_all(&mut Vec::new(), |votes| votes.max_votes() >= majority)
            .await;
        let mut failure = None;
        for address in votes.by_number() {
            match dial_primary(&self.primary.at(Arc::clone(&address))).await {
                Ok(connection) => {
                    tokio::spawn(Arc::clone(self).watch(address, connection.health()));
                    return Ok(connection);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| self.no_primary(votes)))
    }

    fn majority(&self) -> usize {
        self.sentinels.len() / 2 + 1
    }

    fn no_primary(&self, votes: Votes) -> RedisError {
        if votes.unknown {
            let detail = "no sentinel monitors a primary of this name";
            return RedisError::from((ErrorKind::InvalidClientConfig, detail, self.name.clone()));
        }
        let cause = votes.failure.map(|error| error.to_string()).unwrap_or_default();
        RedisError::from((ErrorKind::Io, "no sentinel answers", cause))
    }

    /// Closes a connection when a majority of the sentinels replies and more of them report another
    /// server than this one. Ends together with the connection.
    async fn watch(self: Arc<Self>, address: Address, primary: Weak<Health>) {
        let mut connections = Vec::new();
        loop {
            sleep(with_jitter(POLL_INTERVAL)).await;
            if primary.upgrade().is_none_or(|health| health.is_broken()) {
                return;
            }
            let votes = self.query_all(&mut connections, |_| false).await;
            let first = votes.by_number().into_iter().next();
            let is_better = |first: &Address| {
                votes.number >= self.majority() && votes.count_for(first) > votes.count_for(&address)
            };
            let Some(other) = first.filter(is_better) else {
                continue;
            };
            if let Some(health) = primary.upgrade() {
                tracing::info!(from = %shown(&address), to = %shown(&other), "Sentinel reports another primary");
                health.mark_broken();
            }
            return;
        }
    }

    /// Queries all sentinels in parallel, over existing `connections` where possible, until
    /// `settled` accepts the votes or a grace period after the replies of a majority is over.
    async fn query_all(
        &self,
        connections: &mut Vec<Option<Connection>>,
        settled: impl Fn(&Votes) -> bool,
    ) -> Votes {
        let mut queries = JoinSet::new();
        connections.resize_with(self.sentinels.len(), || None);
        for (place, (sentinel, connection)) in self.sentinels.iter().zip(connections.iter_mut()).enumerate() {
            let (sentinel, connection, name) = (sentinel.clone(), connection.take(), self.name.clone());
            queries.spawn(async move { (place, query(&sentinel, connection, &name).await) });
        }
        let mut votes = Votes::default();
        let mut stop_at = Instant::now() + QUERY_TIMEOUT;
        while !settled(&votes) {
            let Ok(Some(ended)) = timeout_at(stop_at, queries.join_next()).await else {
                break;
            };
            let Ok((place, reply)) = ended else { continue };
            match reply {
                Ok((connection, reply)) => {
                    votes.count(reply);
                    if votes.number == self.majority() {
                        stop_at = stop_at.min(Instant::now() + GRACE);
                    }
                    if let Some(slot) = connections.get_mut(place) {
                        *slot = Some(connection);
                    }
                }
                Err(error) => votes.failure = Some(error),
            }
        }
        votes
    }
}

impl Votes {
    fn count(&mut self, reply: Option<Address>) {
        self.number += 1;
        let Some(address) = reply else {
            self.unknown = true;
            return;
        };
        match self.named.iter_mut().find(|(named, _)| *named == address) {
            Some((_, number)) => *number += 1,
            None => self.named.push((address, 1)),
        }
    }

    fn count_for(&self, address: &Address) -> usize {
        let found = self.named.iter().find(|(named, _)| named == address);
        found.map_or(0, |(_, number)| *number)
    }

    fn max_votes(&self) -> usize {
        self.named.iter().map(|(_, number)| *number).max().unwrap_or(0)
    }

    /// Returns the addresses, the most reported one first.
    fn by_number(&self) -> Vec<Address> {
        let mut named = self.named.clone();
        named.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        named.into_iter().map(|(address, _)| address).collect()
    }
}

/// Queries a sentinel for the address of the primary; `None` if it does not know the name. Returns
/// the connection for the next query.
async fn query(
    sentinel: &Endpoint,
    connection: Option<Connection>,
    name: &str,
) -> Result<(Connection, Option<Address>), RedisError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => dial::open(sentinel).await?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = within(connection.query(&command), sentinel).await?;
    if answer == Value::Nil {
        return Ok((connection, None));
    }
    let address: (String, u16) = redis::from_redis_value(answer)?;
    Ok((connection, Some(Arc::new(address))))
}

/// Connects to a server and verifies that it is a primary.
async fn dial_primary(server: &Endpoint) -> Result<Connection, RedisError> {
    let mut connection = dial::open(server).await?;
    let role = within(connection.query(&redis::cmd("ROLE")), server).await?;
    match role.as_sequence() {
        Some([Value::BulkString(role), ..]) if role == b"master" => Ok(connection),
        _ => {
            let detail = "the server that the sentinels name is not a primary";
            Err(RedisError::from((ErrorKind::Io, detail, server.to_string())))
        }
    }
}

async fn within(
    answer: impl Future<Output = Result<Value, RedisError>>,
    server: &Endpoint,
) -> Result<Value, RedisError> {
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time", server.to_string()));
    timeout(DIAL_TIMEOUT, answer).await.map_err(late)?
}

fn shown(address: &Address) -> String {
    format!("{}:{}", address.0, address.1)
}

/// Writes the primary's name and the addresses of the sentinels, never credentials.
impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "primary `{}` of the sentinels at ", self.name)?;
        for (place, sentinel) in self.sentinels.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{sentinel}")?;
        }
        Ok(())
    }
}
