//! Dialers: open connections to a server, to the primary that Sentinel reports, or through the
//! manager of an application's pool.

use std::fmt;
use std::sync::Arc;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{ManageConnection, Pool};
use bb8_redis::redis::{ErrorKind, RedisError};

use crate::redis::client::connection::Connection;
use crate::redis::client::connection::Health;
use crate::redis::client::dial;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::topology::sentinel::Sentinel;

/// Opens connections.
#[derive(Clone)]
pub(crate) enum Dialer {
    /// To one server.
    To(Endpoint),
    /// To the current primary that Sentinel reports.
    Primary(Arc<Sentinel>),
    /// Through the manager of a user's pool.
    Through(Pool<RedisConnectionManager>),
}

/// Writes the address, never the credentials.
impl fmt::Display for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(endpoint) => write!(f, "{endpoint}"),
            Self::Primary(sentinel) => write!(f, "{sentinel}"),
            Self::Through(_) => f.write_str("the address of a pool's manager"),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({self})")
    }
}

impl ManageConnection for Dialer {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Self::To(endpoint) => dial::open(endpoint).await,
            Self::Primary(sentinel) => sentinel.connect().await,
            Self::Through(pool) => {
                let health = Arc::new(Health::new());
                Ok(Connection::new(pool.dedicated_connection().await?, health, None))
            }
        }
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        if connection.is_broken() {
            return Err(RedisError::from((ErrorKind::Io, "the connection is broken")));
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken()
    }
}
