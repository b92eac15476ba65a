//! Finds the primary that sentinels watch over: anew on each dial.
//!
//! Nothing is subscribed to. When sentinels fail over, they have the old primary drop its connections, or it is dead, or it
//! refuses what writes; each of these ends a connection, and the next one goes where the sentinels say.

use std::fmt;
use std::sync::Arc;

use bb8_redis::redis::{self, ErrorKind, ProtocolVersion, RedisError, Value};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::dial::{self, DIAL_TIMEOUT};
use super::endpoint::{Endpoint, Place, unusable};
use super::slots::Address;
use super::tls::Certificates;
use crate::error::ConfigError;

/// The sentinels, and the primary they are asked for.
pub(super) struct Sentinel {
    sentinels: Vec<Endpoint>,
    /// The name of the primary stands in place of its host.
    primary: Endpoint,
    name: String,
}

/// What became of a question or a dial.
enum Step {
    Told(Result<Option<Address>, RedisError>),
    Dialled(Result<Connection, RedisError>),
}

impl Sentinel {
    pub(super) fn new(
        sentinels: &[String],
        primary: &str,
        certificates: &Certificates,
    ) -> Result<Self, ConfigError> {
        if sentinels.is_empty() {
            return Err(ConfigError::Missing {
                what: "a URL of a sentinel",
            });
        }
        let watched = Endpoint::parse(primary, certificates)?;
        let Place::Tcp(named) = &watched.place else {
            return Err(unusable(
                primary,
                "the primary's name in place of a host: redis://name/0",
            ));
        };
        let sentinels = sentinels.iter().map(|url| {
            let mut sentinel = Endpoint::parse(url, certificates)?;
            // Older sentinels know nothing else, and a connection that answers one question gains nothing by RESP3.
            sentinel.login = sentinel.login.set_protocol(ProtocolVersion::RESP2);
            Ok(sentinel)
        });
        Ok(Self {
            sentinels: sentinels.collect::<Result<_, ConfigError>>()?,
            name: named.0.clone(),
            primary: watched,
        })
    }

    /// Asks all sentinels at once, dials each server that one of them names, and takes the first that says of itself that
    /// it is the primary. So neither a dead sentinel nor one that missed a failover delays the others' answers.
    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        let mut steps = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            steps.spawn(async move { Step::Told(primary_of(&sentinel, &name).await) });
        }
        let (mut named, mut unknown, mut silent, mut unusable) = (Vec::new(), false, None, None);
        while let Some(step) = steps.join_next().await {
            match step {
                Ok(Step::Told(Ok(Some(address)))) if !named.contains(&address) => {
                    let server = self.primary.at(Arc::clone(&address));
                    steps.spawn(async move { Step::Dialled(dial_primary(&server).await) });
                    named.push(address);
                }
                Ok(Step::Told(Ok(Some(_)))) | Err(_) => {}
                Ok(Step::Told(Ok(None))) => unknown = true,
                Ok(Step::Told(Err(error))) => silent = Some(error),
                Ok(Step::Dialled(Ok(connection))) => return Ok(connection),
                Ok(Step::Dialled(Err(error))) => unusable = Some(error),
            }
        }
        Err(match (unusable, silent) {
            (Some(error), _) => error,
            _ if unknown => RedisError::from((
                ErrorKind::InvalidClientConfig,
                "the sentinels know no primary of this name",
                self.name.clone(),
            )),
            (None, Some(error)) => {
                RedisError::from((ErrorKind::Io, "no sentinel answers", error.to_string()))
            }
            (None, None) => RedisError::from((ErrorKind::Io, "no sentinel answers")),
        })
    }
}

/// Where this sentinel says the primary is, if it knows one of this name.
async fn primary_of(sentinel: &Endpoint, name: &str) -> Result<Option<Address>, RedisError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = async { dial::open(sentinel).await?.ask(&command).await };
    let answer = tokio::time::timeout(DIAL_TIMEOUT, answer).await.map_err(|_| {
        RedisError::from((
            ErrorKind::Io,
            "a sentinel did not answer in time",
            sentinel.to_string(),
        ))
    })??;
    match answer {
        Value::Nil => Ok(None),
        answer => {
            let (host, port): (String, u16) = redis::from_redis_value(answer)?;
            Ok(Some(Arc::new((host, port))))
        }
    }
}

/// A connection to this server, if it is a primary.
async fn dial_primary(server: &Endpoint) -> Result<Connection, RedisError> {
    let dialled = async {
        let mut connection = dial::open(server).await?;
        let role = connection.ask(&redis::cmd("ROLE")).await?;
        let is_primary = matches!(
            role.as_sequence().and_then(<[Value]>::first),
            Some(Value::BulkString(role)) if role == b"master"
        );
        if is_primary {
            return Ok(connection);
        }
        let detail = "the sentinels named a server that is no primary now";
        Err(RedisError::from((ErrorKind::Io, detail, server.to_string())))
    };
    let too_late = |_| {
        RedisError::from((
            ErrorKind::Io,
            "the primary did not answer in time",
            server.to_string(),
        ))
    };
    tokio::time::timeout(DIAL_TIMEOUT, dialled)
        .await
        .map_err(too_late)?
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
