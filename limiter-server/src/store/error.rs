//! Errors of the database, in the classes that callers distinguish.
//!
//! A caller must know whether a repetition can succeed and whether a change may have been saved.
//! The codes of SQLite, PostgreSQL, MySQL and MariaDB are mapped to both properties:
//! `is_unavailable` and `is_unconfirmed`.
//!
//! The text of the driver is in `source`, and a message states the remedy. Tests:
//! `tests/control_plane/stalled_database.rs`, `tests/store.rs`.

use std::fmt;

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use crate::store::StoredDocument;

/// The reason for a failed operation of the database.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The URL of the database cannot be used.
    Url(String),
    /// The database gave no answer, or rejected a statement.
    Database(sqlx::Error),
    /// The database has no tables of this program.
    Missing(sqlx::Error),
    /// The store was closed.
    Closed,
    /// The database gave no answer in time, or an earlier request had none and this one was not
    /// sent.
    Unavailable,
    /// The database did not confirm a commit, so the change may have been saved.
    Unconfirmed(sqlx::Error),
    /// Another program updates the schema.
    Locked,
    /// The object was changed since the caller read it.
    Conflict {
        /// The revision that the caller read; 0 for none.
        expected: i64,
        /// The current version; `None` if the object does not exist.
        current: Option<Box<StoredDocument>>,
    },
    /// The documents of the namespace would not fit together, for this reason.
    Inconsistent(String),
    /// The object without revisions was changed since the caller read it.
    Changed,
    /// An object of this name exists already.
    Exists,
    /// The object does not exist.
    NotFound,
    /// The change would remove the last administrator.
    LastAdmin,
    /// The database has a newer schema than this program knows.
    NewerSchema {
        /// The version of the database.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
}

impl StoreError {
    /// Returns whether the database could not be reached, so that the same request may succeed
    /// later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => is_outage(&**error) || is_temporary(&**error),
            Self::Database(_) | Self::Closed | Self::Unavailable | Self::Unconfirmed(_) | Self::Locked => {
                true
            }
            _ => false,
        }
    }

    /// Returns whether the change may have been saved nevertheless.
    #[must_use]
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self, Self::Unconfirmed(_))
    }

    /// Returns the error of a commit. The outcome is known if the database rejected the commit.
    pub(super) fn of_commit(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(of)
                if of.try_downcast_ref::<SqliteError>().is_some() || !is_outage(&**of) =>
            {
                Self::Database(error)
            }
            _ => Self::Unconfirmed(error),
        }
    }

    /// Returns whether another connection has locked the file of SQLite.
    pub(super) fn is_busy_file(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                // Higher bits refine the code.
                let code = error.code().and_then(|code| code.parse::<u32>().ok());
                error.try_downcast_ref::<SqliteError>().is_some() && code.is_some_and(|code| code & 0xff == 5)
            }
            _ => false,
        }
    }

    /// Returns whether a row with the same key exists.
    pub(super) fn is_duplicate(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => error.is_unique_violation(),
            _ => false,
        }
    }
}

/// Returns whether the error of a database is about its state and not about the statement.
fn is_outage(error: &(dyn DatabaseError + 'static)) -> bool {
    let Some(code) = error.code() else {
        return false;
    };
    if error.try_downcast_ref::<SqliteError>().is_some() {
        // Busy, input and output, corrupt, full, cannot open, no database. Higher bits refine them.
        let code = code.parse::<u32>().unwrap_or_default() & 0xff;
        return matches!(code, 5 | 10 | 11 | 13 | 14 | 26);
    }
    // Connections, resources, a shutdown.
    ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
}

/// Returns whether the database ended a statement because of other transactions, its timeouts or
/// its role in a cluster, without changes.
fn is_temporary(error: &(dyn DatabaseError + 'static)) -> bool {
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        // The wait for a lock, the time of a query, a server that only reads. They have the general
        // code HY000.
        if matches!(error.number(), 1205 | 1290 | 1836 | 3024) {
            return true;
        }
    }
    let Some(code) = error.code() else {
        return false;
    };
    // A deadlock, and in MySQL and MariaDB an interrupted statement. In PostgreSQL a transaction
    // that only reads, a lock that is not available and a cancelled statement.
    code.starts_with("40") || matches!(&*code, "70100" | "25006" | "55P03" | "57014")
}

/// Returns whether the database rejected the user or the password.
fn is_rejected_login(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return false;
    };
    let error = error.try_downcast_ref::<MySqlDatabaseError>();
    error.is_some_and(|error| error.number() == 1045)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(reason) => write!(f, "cannot use the database URL: {reason}"),
            Self::Database(error) => {
                write!(f, "the database failed")?;
                // MySQL 8 encrypts passwords by RSA on a connection without TLS, and the program
                // contains no RSA. On a unix socket, the driver requests the key as well, and MySQL
                // rejects the request as a wrong password.
                let is_rejected = is_rejected_login(error);
                if is_rejected {
                    write!(f, "; it rejected the user or the password: check both")?;
                }
                if is_rejected || error.to_string().contains("RSA auth backend disabled") {
                    write!(
                        f,
                        "; the login of MySQL 8 needs TLS, also over a unix socket: enable TLS at the server, and add \
                         ?ssl-mode=REQUIRED to the URL"
                    )?;
                }
                Ok(())
            }
            Self::Missing(_) => f.write_str(
                "there is no database of limiter-server at this URL: start the server or apply a policy file to create it",
            ),
            Self::Closed => f.write_str("the store was closed"),
            Self::Unavailable => f.write_str("the database does not answer"),
            Self::Unconfirmed(_) => f.write_str(
                "the database did not confirm the change, which may have been saved: read it before you repeat it",
            ),
            Self::Locked => f.write_str(
                "another program updates the schema of the database: wait until it has ended and try again",
            ),
            Self::Conflict { expected, current } => {
                let found = current.as_ref().map_or(0, |current| current.revision);
                write!(
                    f,
                    "revision {expected} was read, and the current revision is {found}: read it again and repeat the change"
                )
            }
            Self::Inconsistent(reason) => f.write_str(reason),
            Self::Changed => f.write_str("the object was changed since it was read: read it again and repeat the change"),
            Self::Exists => f.write_str("an object of this name exists"),
            Self::NotFound => f.write_str("there is no such object"),
            Self::LastAdmin => f.write_str("the last administrator cannot be removed"),
            Self::NewerSchema { found, known } => write!(
                f,
                "the database has schema {found}, and this program knows schema {known}: update the program"
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) | Self::Missing(error) | Self::Unconfirmed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}
