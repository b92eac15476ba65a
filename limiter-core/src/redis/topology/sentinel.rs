//! Finds the primary that sentinels watch over, and notices when it is another.
//!
//! Nothing is subscribed to: each connection is dialled where most sentinels say, and they are
//! asked again and again while it is open. An old primary goes on answering for up to ten seconds
//! after a failover, and only they know better.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bb8_redis::redis;
use bb8_redis::redis::{ErrorKind, ProtocolVersion, RedisError, Value};
use tokio::task::JoinSet;

use crate::error::ConfigError;
use crate::redis::client::connection::Connection;
use crate::redis::client::dial;
use crate::redis::client::dial::DIAL_TIMEOUT;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::health::Health;
use crate::redis::client::tls::Certificates;
use crate::redis::secret_url::SecretUrl;
use crate::redis::topology::slots::Address;
use crate::support::jitter::varied;
use crate::support::real_time::{sleep, timeout, timeout_at};

/// How long all sentinels are waited for …
const PATIENCE: Duration = DIAL_TIMEOUT.saturating_mul(2);
/// … and how much longer the others, once most have answered.
const GRACE: Duration = Duration::from_millis(100);
/// How often the sentinels are asked whether a connection still leads to the primary.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The sentinels, and the primary they are asked for.
pub(crate) struct Sentinel {
    sentinels: Vec<Endpoint>,
    /// The name of the primary stands in place of its host.
    primary: Endpoint,
    name: String,
}

/// What sentinels answered.
#[derive(Default)]
struct Votes {
    /// How many answered.
    number: usize,
    /// Each address, by how many name it.
    named: Vec<(Address, usize)>,
    /// Whether one does not know the name.
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
                what: "a URL of a sentinel",
            });
        }
        let watched = Endpoint::parse(primary, certificates)?;
        let Some(named) = watched.address() else {
            let expected = "the primary's name in place of a host, such as redis://name/0";
            return Err(primary.invalid(expected));
        };
        let sentinels = sentinels.iter().map(|url| {
            let mut sentinel = Endpoint::parse(url, certificates)?;
            // A connection that answers one question gains nothing by RESP3, and needs no
            // permission for it.
            sentinel.login = sentinel.login.set_protocol(ProtocolVersion::RESP2).set_db(0);
            Ok(sentinel)
        });
        Ok(Self {
            sentinels: sentinels.collect::<Result<_, ConfigError>>()?,
            name: named.0.clone(),
            primary: watched,
        })
    }

    /// Dials the server that most sentinels name, or else another that one names, if it says of
    /// itself that it is the primary. The answer of a majority is enough, so that a dead sentinel
    /// delays nothing; fewer are believed only after the others had their time, since the nearest
    /// may be the one that was cut off.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<Connection, RedisError> {
        let majority = self.majority();
        let votes = self
            .query_all(&mut Vec::new(), |votes| votes.most() >= majority)
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
            let detail = "no sentinel knows a primary of this name";
            return RedisError::from((ErrorKind::InvalidClientConfig, detail, self.name.clone()));
        }
        let why = votes.failure.map(|error| error.to_string()).unwrap_or_default();
        RedisError::from((ErrorKind::Io, "no sentinel answers", why))
    }

    /// Ends a connection once most sentinels answer, and more name another server than name this
    /// one. Ends with the connection itself.
    async fn watch(self: Arc<Self>, address: Address, watched: Weak<Health>) {
        let mut lines = Vec::new();
        loop {
            sleep(varied(WATCH_EVERY)).await;
            if watched.upgrade().is_none_or(|health| health.is_broken()) {
                return;
            }
            let votes = self.query_all(&mut lines, |_| false).await;
            let first = votes.by_number().into_iter().next();
            let is_better = |first: &Address| {
                votes.number >= self.majority() && votes.count_for(first) > votes.count_for(&address)
            };
            let Some(other) = first.filter(is_better) else {
                continue;
            };
            if let Some(health) = watched.upgrade() {
                tracing::info!(from = %shown(&address), to = %shown(&other), "Sentinel reports another primary");
                health.break_off();
            }
            return;
        }
    }

    /// Asks all sentinels at once, over the connections in `lines` where there are any, until the
    /// answers settle it, or for a moment after those of a majority.
    async fn query_all(
        &self,
        lines: &mut Vec<Option<Connection>>,
        settled: impl Fn(&Votes) -> bool,
    ) -> Votes {
        let mut asked = JoinSet::new();
        lines.resize_with(self.sentinels.len(), || None);
        for (place, (sentinel, line)) in self.sentinels.iter().zip(lines.iter_mut()).enumerate() {
            let (sentinel, line, name) = (sentinel.clone(), line.take(), self.name.clone());
            asked.spawn(async move { (place, query(&sentinel, line, &name).await) });
        }
        let mut votes = Votes::default();
        let mut until = Instant::now() + PATIENCE;
        while !settled(&votes) {
            let Ok(Some(ended)) = timeout_at(until, asked.join_next()).await else {
                break;
            };
            let Ok((place, told)) = ended else { continue };
            match told {
                Ok((line, told)) => {
                    votes.count(told);
                    if votes.number == self.majority() {
                        until = until.min(Instant::now() + GRACE);
                    }
                    if let Some(kept) = lines.get_mut(place) {
                        *kept = Some(line);
                    }
                }
                Err(error) => votes.failure = Some(error),
            }
        }
        votes
    }
}

impl Votes {
    fn count(&mut self, told: Option<Address>) {
        self.number += 1;
        let Some(address) = told else {
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

    fn most(&self) -> usize {
        self.named.iter().map(|(_, number)| *number).max().unwrap_or(0)
    }

    /// The addresses, the one that most name first.
    fn by_number(&self) -> Vec<Address> {
        let mut named = self.named.clone();
        named.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        named.into_iter().map(|(address, _)| address).collect()
    }
}

/// Where this sentinel says the primary is, if it knows one of this name; and the connection, to
/// ask again.
async fn query(
    sentinel: &Endpoint,
    line: Option<Connection>,
    name: &str,
) -> Result<(Connection, Option<Address>), RedisError> {
    let mut line = match line {
        Some(line) => line,
        None => dial::open(sentinel).await?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = within(line.query(&command), sentinel).await?;
    if answer == Value::Nil {
        return Ok((line, None));
    }
    let address: (String, u16) = redis::from_redis_value(answer)?;
    Ok((line, Some(Arc::new(address))))
}

/// A connection to this server, if it is a primary.
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
    of: &Endpoint,
) -> Result<Value, RedisError> {
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time", of.to_string()));
    timeout(DIAL_TIMEOUT, answer).await.map_err(late)?
}

fn shown(address: &Address) -> String {
    format!("{}:{}", address.0, address.1)
}

/// The primary's name, and where the sentinels are; never credentials.
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
